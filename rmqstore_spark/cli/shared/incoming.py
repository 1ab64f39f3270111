"""Messages from stdin: each line is a body, or a JSON object; a group of them becomes a block."""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from rmqstore_spark.errors import OptionError, RowError
from rmqstore_spark.layout.record.columns import COLUMNS
from rmqstore_spark.layout.record.properties import MAP_TYPE
from rmqstore_spark.produce.encoder import MessageEncoder
from rmqstore_spark.produce.queue_choice import Queues, Router
from rmqstore_spark.reader.texts import parse_timestamp_ms

if TYPE_CHECKING:
    from rmqstore_spark.layout.spans import U1
    from rmqstore_spark.wire.reading import OpenReply, TopicSettings


_CHUNK: Final = 1 << 20
_INT_MAX: Final = (1 << 31) - 1
_LONG_MAX: Final = (1 << 63) - 1
_TAKEN: Final = (
    "topic", "queueId", "shardingKey", "tags", "keys", "properties", "body", "bodyEncoding",
    "flag", "bornTimestamp", "delayTimeLevel",
)  # fmt: skip
_IGNORED: Final = frozenset(COLUMNS) - set(_TAKEN)
"""Other columns of `rmqstore read --json`: they describe the old message, not the new one."""


@dataclass(frozen=True)
class Message:
    """A message to put.

    Attributes:
        queue_id: None if the encoder chooses the queue.
        sharding_key: chooses the queue if queue_id is None; without it, the keys do.
        born_timestamp: milliseconds; None for now.
        delay_level: 0 for no delay.
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: str = ""
    properties: Mapping[str, str] | None = None
    queue_id: int | None = None
    sharding_key: str | None = None
    flag: int = 0
    born_timestamp: int | None = None
    delay_level: int = 0


def lines_of(descriptor: int, longest: int) -> Iterator[list[bytes]]:
    """Yield the lines of a file, grouped as they arrive; the last line needs no line end.

    Args:
        descriptor: the descriptor of the file.
        longest: maximum bytes of a line.

    Raises:
        OptionError: a line is longer.
    """
    rest = b""
    while chunk := os.read(descriptor, _CHUNK):
        *whole, rest = (rest + chunk).split(b"\n")
        if len(rest) > longest:
            raise OptionError(f"A line of stdin is longer than {longest} bytes: split it.")
        if whole:
            yield whole
    if rest:
        yield [rest]


@dataclass(frozen=True)
class Template:
    """Values for messages: the topic of all of them, and defaults for what they lack.

    Attributes:
        as_json: whether lines are JSON instead of bodies.
    """

    topic: str | None = None
    tags: str | None = None
    keys: str = ""
    queue_id: int | None = None
    as_json: bool = False
    delay_level: int = 0

    def read(self, line: bytes, number: int) -> Message:
        """Parse a line as a message.

        Args:
            number: the number of the line, for errors.

        Raises:
            OptionError: the line is not a message.
        """
        line = line.removesuffix(b"\r")
        try:
            if not self.as_json:
                return Message(
                    self._topic(None), line, self.tags, self.keys,
                    queue_id=self.queue_id, delay_level=self.delay_level,
                )  # fmt: skip
            return self._of_json(json.loads(line))
        except json.JSONDecodeError as error:
            raise OptionError(
                f"Line {number} of stdin is not a message: it is not JSON ({error.msg}, at "
                f"character {error.pos + 1})."
            ) from None
        except (ValueError, RecursionError) as error:
            raise OptionError(f"Line {number} of stdin is not a message: {error}.") from None

    def _of_json(self, value: Any) -> Message:
        if not isinstance(value, dict):
            raise ValueError('it is not an object such as {"body": "..."}')
        unknown = [name for name in value if name not in _TAKEN and name not in _IGNORED]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is unknown; the names are {', '.join(_TAKEN)}")
        return Message(
            topic=self._topic(_text(value, "topic")),
            body=_body(value),
            tags=_text(value, "tags") or self.tags,
            keys=_keys(value.get("keys")) or self.keys,
            properties=_properties(value.get("properties")),
            queue_id=_number(value, "queueId", self.queue_id),
            sharding_key=_text(value, "shardingKey"),
            flag=_number(value, "flag", 0, least=-_INT_MAX - 1) or 0,
            born_timestamp=_time(value.get("bornTimestamp")),
            delay_level=_number(value, "delayTimeLevel", self.delay_level) or 0,
        )

    def _topic(self, own: str | None) -> str:
        topic = own if self.topic is None else self.topic
        if topic is None:
            raise ValueError("it has no topic; give --topic, or with --json a topic in each line")
        return topic


def _text(value: Mapping[str, Any], name: str) -> str | None:
    found = value.get(name)
    if found is not None and not isinstance(found, str):
        raise ValueError(f"{name} must be a string, not {found!r:.40}")
    return None if found is None else _sound(found)


def _sound(text: str) -> str:
    if not text.isascii():
        text.encode("utf-8")  # JSON can hold lone surrogates, but a record cannot
    return text


def _number(
    value: Mapping[str, Any], name: str, default: int | None, *, least: int = 0
) -> int | None:
    found = value.get(name)
    if found is None:
        return default
    if type(found) is not int or not least <= found <= _INT_MAX:
        raise ValueError(
            f"{name} must be a whole number from {least} to {_INT_MAX}, not {found!r:.40}"
        )
    return found


def _body(value: Mapping[str, Any]) -> bytes:
    body = _text(value, "body")
    if body is None:
        raise ValueError("it has no body")
    encoding = value.get("bodyEncoding", "utf-8")
    if encoding == "utf-8":
        return body.encode("utf-8")
    if encoding == "base64":
        try:
            return base64.b64decode(body, validate=True)
        except binascii.Error as error:
            raise ValueError(f"body is not valid base64: {error}") from None
    raise ValueError(f"bodyEncoding must be utf-8 or base64, not {encoding!r:.40}")


def _keys(found: Any) -> str:
    if found is None or isinstance(found, str):
        return _sound(found or "")
    if not isinstance(found, list) or not all(isinstance(key, str) for key in found):
        raise ValueError(f"keys must be a string or a list of strings, not {found!r:.40}")
    if any(" " in key for key in found):
        raise ValueError("a key contains a space, but spaces separate keys")
    return _sound(" ".join(found))


def _properties(found: Any) -> Mapping[str, str] | None:
    if found is None:
        return None
    if not isinstance(found, dict) or not all(isinstance(v, str | None) for v in found.values()):
        raise ValueError(f"properties must be an object of strings, not {found!r:.40}")
    return {_sound(name): _sound(v) for name, v in found.items() if v is not None}


def _time(found: Any) -> int | None:
    if type(found) is int and abs(found) > _LONG_MAX:
        raise ValueError(f"bornTimestamp must be a time, not {found!r:.40}")
    if found is None or type(found) is int:
        return found
    if not isinstance(found, str):
        raise ValueError(f"bornTimestamp must be a time, not {found!r:.40}")
    try:
        return parse_timestamp_ms(found)
    except ValueError as error:
        raise ValueError(f"bornTimestamp {error}, not {found!r:.40}") from None


class LineEncoder:
    """Encodes blocks for one store.

    Args:
        store: the store's reply to the open request.
    """

    def __init__(self, store: OpenReply) -> None:
        self.topics: Mapping[str, TopicSettings] = store.topics
        self._most_bytes = store.max_message_size
        self._store_host_v6 = store.store_host_v6
        self._encoder = MessageEncoder(Router(self._queues))

    def block(self, messages: Sequence[Message], first: int) -> U1:
        """Encode messages as a block of contiguous records.

        Args:
            messages: n messages.
            first: number of the first one's line, for errors.

        Raises:
            OptionError: a message cannot be stored.
        """
        for number, message in enumerate(messages, first):
            self._check(message, number)
        columns = {
            "topic": pa.array([m.topic for m in messages], pa.string()),
            "queueId": pa.array([m.queue_id for m in messages], pa.int64()),
            "shardingKey": pa.array([m.sharding_key for m in messages], pa.string()),
            "keys": pa.array([m.keys or None for m in messages], pa.string()),
            "tags": pa.array([m.tags for m in messages], pa.string()),
            "properties": pa.array(
                [list((m.properties or {}).items()) for m in messages], MAP_TYPE
            ),
            "flag": pa.array([m.flag for m in messages], pa.int64()),
            "delayTimeLevel": pa.array([m.delay_level for m in messages], pa.int64()),
            "bornTimestamp": pa.array([m.born_timestamp for m in messages], pa.int64()),
            "body": pa.array([m.body for m in messages], pa.binary()),
        }
        try:
            ready = self._encoder.prepare(columns)
        except RowError as error:
            raise OptionError(f"Line {first + error.row} of stdin {error.cause}.") from None
        return ready.encode(store_host_v6=self._store_host_v6).data

    def _queues(self, topic: str) -> Queues:
        return Queues.of([self.topics[topic].write_queue_nums])

    def _check(self, message: Message, number: int) -> None:
        if len(message.body) > self._most_bytes:
            raise OptionError(
                f"Line {number} of stdin has a body of {len(message.body)} bytes; the store "
                f"accepts at most {self._most_bytes} (maxMessageSize)."
            )
        count = self.topics[message.topic].write_queue_nums
        if message.queue_id is not None and message.queue_id >= count:
            raise OptionError(
                f"Line {number} of stdin is for queue {message.queue_id} of topic "
                f"{message.topic}, which has {count}: 0 to {count - 1}. Add queues with "
                f"`rmqstore create-topic ENDPOINT {message.topic} --queues N`."
            )
