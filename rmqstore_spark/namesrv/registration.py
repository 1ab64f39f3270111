"""A broker's registration: who it is, and its topics. The body is JSON, or compressed.

Upstream: RegisterBrokerRequestHeader, RegisterBrokerBody, TopicConfig, DataVersion.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from rmqstore_spark.errors import FrameError, RemotingError
from rmqstore_spark.remoting.codec.bodies import MAX_VALUES, inflate, parse_body
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.fields import MAX_INT, MAX_LONG, MAX_NAME, Fields

_MAX_INFLATED: Final = 32 << 20
"""Most bytes of a body when it is decompressed: 300,000 topics."""
_MAX_FILTER_SERVERS: Final = 64
_MAX_TOPIC: Final = 512
"""Most characters of a topic: a broker makes topics of `%RETRY%` and a group of up to 255."""
_WITH_FILTER_SERVERS: Final = 37
"""The version from which on a body has filter servers beside topics (V3_0_11)."""

_INT: Final = struct.Struct(">i")


class DataVersion(NamedTuple):
    """The version of a broker's topics: a counter, and a time in ms since 1970."""

    counter: int = 0
    timestamp: int = 0


_NO_VERSION: Final = DataVersion()


class TopicQueues(NamedTuple):
    """A topic of one broker, in the order of its JSON (QueueData)."""

    brokerName: str  # noqa: N815 - the names are those of the JSON
    perm: int
    readQueueNums: int  # noqa: N815
    topicSysFlag: int  # noqa: N815
    writeQueueNums: int  # noqa: N815


class BrokerId(NamedTuple):
    """Who a broker is.

    Attributes:
        cluster: its cluster.
        name: shared by a master and its slaves.
        id: 0 is the master.
        address: where clients find it, as `host:port`.
    """

    cluster: str
    name: str
    id: int
    address: str


@dataclass
class Registration:
    """A registration.

    Attributes:
        broker: who registers.
        ha_address: where its slaves find it.
        version: of its topics.
        topics: by name; all that it has, or those that changed.
        filter_servers: None: the broker is too old to have any.
        left_out: number of topics that no client could use. A broker takes any name and number
            from an administrator, and one of them must not keep the others from their routes.
        left_out_for: what is wrong with the first of them.
    """

    broker: BrokerId
    ha_address: str = ""
    version: DataVersion = _NO_VERSION
    topics: dict[str, TopicQueues] = field(default_factory=dict)
    filter_servers: list[str] | None = None
    left_out: int = 0
    left_out_for: str = ""

    def leave_out(self, error: FrameError) -> None:
        """Count a topic that is wrong."""
        self.left_out_for = self.left_out_for or str(error)
        self.left_out += 1


def read_broker(request: Command) -> BrokerId:
    """Read who a broker is.

    Raises:
        RemotingError: a field is missing or wrong.
    """
    fields = Fields(request.ext)
    return BrokerId(
        fields.name("clusterName"),
        fields.name("brokerName"),
        fields.long("brokerId", 0, MAX_LONG),
        fields.name("brokerAddr"),
    )


def read_registration(request: Command) -> Registration:
    """Read a registration.

    Raises:
        RemotingError: a field is missing or wrong, or the checksum of the body is.
        FrameError: the body is not that of a registration.
    """
    fields = Fields(request.ext)
    found = Registration(read_broker(request), request.ext.get("haServerAddr", "")[:MAX_NAME])
    checksum = fields.long("bodyCrc32", -MAX_INT - 1, MAX_INT, default=0)
    if checksum and checksum != zlib.crc32(request.body) & MAX_INT:
        raise RemotingError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    if not request.body:
        return found
    if request.version < _WITH_FILTER_SERVERS:
        _take_topics(found, parse_body(request.body))
    elif fields.flag("compressed"):
        _take_compressed(found, inflate(request.body, _MAX_INFLATED))
    else:
        body = _object(parse_body(request.body), "the body")
        _take_topics(found, _given(body, "topicConfigSerializeWrapper", {}))
        found.filter_servers = _filter_servers(_given(body, "filterServerList", []))
    return found


def read_data_version(body: bytes) -> DataVersion:
    """Read the version of a broker's topics.

    Raises:
        FrameError: the body is none.
    """
    return _data_version(parse_body(body) if body else {})


def _take_topics(found: Registration, given: Any) -> None:
    wrapper = _object(given, "topicConfigSerializeWrapper")
    found.version = _data_version(_given(wrapper, "dataVersion", {}))
    shared: dict[TopicQueues, TopicQueues] = {}
    table = _object(_given(wrapper, "topicConfigTable", {}), "topicConfigTable")
    for topic, told in table.items():
        config = _object(told, "a topic")
        try:
            name = _topic(config.get("topicName", topic))
            queues = TopicQueues(
                found.broker.name,
                _number(config, "perm", 6),
                _number(config, "readQueueNums", 16),
                _number(config, "topicSysFlag", 0),
                _number(config, "writeQueueNums", 16),
            )
        except FrameError as error:
            found.leave_out(error)
            continue
        # Most topics of a broker are alike; one object for all of them saves much memory.
        found.topics[name] = shared.setdefault(queues, queues)


def _take_compressed(found: Registration, body: bytes) -> None:
    version, at = _sized(body, 0)
    found.version = read_data_version(version)
    count, at = _int(body, at)
    if not 0 <= count <= MAX_VALUES:
        raise FrameError(f"the body states {count} topics; at most {MAX_VALUES} are read")
    shared: dict[TopicQueues, TopicQueues] = {}
    for _ in range(count):
        text, at = _sized(body, at)
        name, *words = str(text, "utf-8", "replace").split(" ")
        try:
            read, write, perm, _filter_type = words
            numbers = _checked(int(perm)), _checked(int(read)), 0, _checked(int(write))
            name = _topic(name)
        except FrameError as error:
            found.leave_out(error)
            continue
        except ValueError:
            raise FrameError("a topic of the body is not NAME READ WRITE PERM FILTER") from None
        queues = TopicQueues(found.broker.name, *numbers)
        found.topics[name] = shared.setdefault(queues, queues)
    servers, _ = _sized(body, at)
    found.filter_servers = _filter_servers(parse_body(servers or b"[]"))


def _int(body: bytes, at: int) -> tuple[int, int]:
    try:
        return int(_INT.unpack_from(body, at)[0]), at + 4
    except struct.error:
        raise FrameError(f"the body is cut off at {at} of its bytes, decompressed") from None


def _sized(body: bytes, at: int) -> tuple[bytes, int]:
    length, at = _int(body, at)
    if not 0 <= length <= len(body) - at:
        raise FrameError(f"a length in the body is {length}, but {len(body) - at} bytes follow")
    return body[at : at + length], at + length


def _data_version(given: Any) -> DataVersion:
    told = _object(given, "a data version")
    return DataVersion(
        _number(told, "counter", 0, MAX_LONG), _number(told, "timestamp", 0, MAX_LONG)
    )


def _filter_servers(given: Any) -> list[str]:
    if not isinstance(given, list) or len(given) > _MAX_FILTER_SERVERS:
        raise FrameError(f"filterServerList must be a list of at most {_MAX_FILTER_SERVERS}")
    return [_name(address, MAX_NAME) for address in given]


def _given(told: dict[str, Any], name: str, default: Any) -> Any:
    given = told.get(name)
    return default if given is None else given


def _object(given: Any, what: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise FrameError(f"{what} must be a JSON object")
    return given


def _number(told: dict[str, Any], name: str, default: int, most: int = MAX_INT) -> int:
    given = told.get(name, default)
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 20:
        given = int(given)  # fastjson reads these too
    if type(given) is not int:
        raise FrameError(f"{name} must be a number")
    return _checked(given, most)


def _checked(number: int, most: int = MAX_INT) -> int:
    if not 0 <= number <= most:
        raise FrameError(f"a number in the body must be from 0 to {most}")
    return number


def _topic(name: Any) -> str:
    return _name(name, _MAX_TOPIC)


def _name(name: Any, most: int) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= most or not name.isprintable():
        raise FrameError(f"a name in the body must have 1 to {most} printable characters")
    return name
