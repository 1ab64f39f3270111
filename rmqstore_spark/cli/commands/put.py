"""`rmqstore put`: puts messages from stdin into a store."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rmqstore_spark.cli.shared.parameters import MasterOf, connect, master_of
from rmqstore_spark.cli.shared.terminal import say
from rmqstore_spark.errors import OptionError, RmqStoreError, ServiceError
from rmqstore_spark.layout.constants import topic_fault

if TYPE_CHECKING:
    from rmqstore_spark.cli.shared.incoming import LineEncoder, Message, Template
    from rmqstore_spark.client import PutStream, StoreClient
    from rmqstore_spark.wire.reading import OpenReply

_LINE_ROOM: Final = 2
"""Maximum length of a line, as a multiple of the longest body."""

_RECORD_ROOM: Final = 1 << 10
"""Approximate bytes of a record without its body."""

_Topic = typer.Option("--topic", "-t", metavar="TOPIC", help="Topic of all messages.")
_Tag = typer.Option("--tag", metavar="TAG", help="Tag of messages without a tag.")
_Key = typer.Option(
    "--key", metavar="KEY", help="Key of messages without keys. Repeat it for several."
)
_Queue = typer.Option(
    "--queue", "-q", metavar="ID", min=0, help="Queue of messages without a queue."
)
_DelayLevel = typer.Option(
    "--delay-level",
    metavar="LEVEL",
    min=0,
    help="Delay level of messages without one: they are delivered after that delay.",
)


def put(
    endpoint: MasterOf,
    topic: Annotated[str | None, _Topic] = None,
    tag: Annotated[str | None, _Tag] = None,
    keys: Annotated[list[str] | None, _Key] = None,
    queue_id: Annotated[int | None, _Queue] = None,
    delay_level: Annotated[int, _DelayLevel] = 0,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Read each line as a JSON object, as `rmqstore read --json` prints it."
        ),
    ] = False,
) -> None:
    """Write the lines of stdin as messages.

    A line is the body of a message. With --json it is an object: body, and optionally topic, tags,
    keys, properties, queueId, shardingKey, flag, bornTimestamp, delayTimeLevel, bodyEncoding. Lines
    that arrive together are written together. When the command ends, all messages are in the store.
    """
    from rmqstore_spark.cli.shared.incoming import Template

    if any(" " in key for key in keys or ()):
        raise OptionError("A key contains a space, but spaces separate keys: give --key twice.")
    template = Template(topic, tag, " ".join(keys or ()), queue_id, as_json, delay_level)
    with connect(master_of(endpoint)) as client:
        count = _put(client, template)
    where = f" to topic {topic}" if topic else ""
    typer.echo(f"{count} message(s) put{where}")


def _put(client: StoreClient, template: Template) -> int:
    from rmqstore_spark.cli.shared.incoming import LineEncoder, lines_of

    if template.topic is not None:
        _safe(template.topic)
    store = client.open(())
    encoder = LineEncoder(store)
    with _counted(client) as stream:
        number = 1
        for lines in lines_of(sys.stdin.fileno(), store.max_message_size * _LINE_ROOM):
            read = [
                (at, template.read(line, at))
                for at, line in enumerate(lines, number)
                if line.strip() or not template.as_json
            ]
            number += len(lines)
            _learn_topics(client, store, encoder, read)
            for piece in _pieces(read, store.max_block_rows, store.max_block_bytes // 2):
                stream.send(encoder.block([message for _, message in piece], piece[0][0]))
        stream.finish()
        return stream.rows


@contextmanager
def _counted(client: StoreClient) -> Iterator[PutStream]:
    """Open a stream of blocks; if it fails, print how many messages were put before."""
    stream = client.put_stream()
    try:
        yield stream
    except (RmqStoreError, KeyboardInterrupt) as error:
        say(f"{stream.rows} message(s) were put before the error.")
        if stream.has_unanswered and isinstance(error, ServiceError | KeyboardInterrupt):
            say("The next ones were sent without an answer: each of them may be stored or not.")
        raise
    finally:
        stream.close()


def _learn_topics(
    client: StoreClient,
    store: OpenReply,
    encoder: LineEncoder,
    read: Iterable[tuple[int, Message]],
) -> None:
    """Fetch the topics that messages name for the first time; storing them may create some."""
    named: dict[str, int] = {}
    for number, message in read:
        if message.topic not in encoder.topics:
            named.setdefault(message.topic, number)
    if named:
        found = client.topics_to_write(map(_safe, named), store)
        encoder.topics = {**encoder.topics, **found}
    for name, number in named.items():
        if name not in encoder.topics:
            raise OptionError(
                f"Line {number} of stdin is for topic {name!r}, which the store does not have. "
                f"Create it: rmqstore create-topic {client.endpoint} {name}"
            )


def _safe(topic: str) -> str:
    fault = topic_fault(topic)
    if fault is not None:
        raise OptionError(fault)
    return topic


def _pieces(
    read: list[tuple[int, Message]], most_rows: int, most_bytes: int
) -> Iterator[list[tuple[int, Message]]]:
    """Split messages into blocks that the store accepts; a message that is too large goes alone."""
    piece: list[tuple[int, Message]] = []
    size = 0
    for entry in read:
        room = len(entry[1].body) + _RECORD_ROOM
        if piece and (len(piece) == most_rows or size + room > most_bytes):
            yield piece
            piece, size = [], 0
        piece.append(entry)
        size += room
    if piece:
        yield piece
