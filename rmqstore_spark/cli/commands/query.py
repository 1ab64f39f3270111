"""`rmqstore query`: finds messages by key, by id, or by time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from rmqstore_spark.cli.shared.choosing import Choice, read_options
from rmqstore_spark.cli.shared.parameters import (
    AllTopics,
    SkipDamaged,
    StoreAt,
    Topics,
    parse_time,
)
from rmqstore_spark.cli.shared.printing import MessageOutput, print_batches
from rmqstore_spark.cli.shared.terminal import say
from rmqstore_spark.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqstore_spark.reader.options import ReadOptions
    from rmqstore_spark.reader.store import Store

_Key = typer.Option("--key", metavar="KEY", help="Find messages with this key (KEYS or UNIQ_KEY).")
_Id = typer.Option("--id", metavar="MSGID", help="Find the message with this offset message id.")
_UniqKey = typer.Option(
    "--uniq-key",
    metavar="ID",
    help="Find messages with this UNIQ_KEY, the id that the client gave.",
)
_From = typer.Option(
    "--from",
    metavar="TIME",
    help="Find messages stored at or after this time (milliseconds or ISO-8601).",
)
_To = typer.Option("--to", metavar="TIME", help="Find messages stored before this time.")
_Limit = typer.Option(
    "--limit",
    "-n",
    min=1,
    metavar="N",
    help="Maximum number of messages: the newest ones with a key, the oldest ones by time.",
)


def query(
    key: Annotated[str | None, _Key] = None,
    msg_id: Annotated[str | None, _Id] = None,
    uniq_key: Annotated[str | None, _UniqKey] = None,
    since: Annotated[str | None, _From] = None,
    until: Annotated[str | None, _To] = None,
    topics: Topics = None,
    limit: Annotated[int | None, _Limit] = None,
    *,
    output: MessageOutput,
    skip_damaged: SkipDamaged = False,
    everything: AllTopics = False,
    where: StoreAt,
) -> None:
    """Find messages by key, by id, or by time.

    Looks up keys in the IndexFiles, and in the log where these have gaps. Use --from and --to alone
    or with --key.
    """
    from rmqstore_spark.reader.lookup import query_by_msg_id

    in_time = since is not None or until is not None
    _check_question(key, msg_id, uniq_key, in_time=in_time, has_topics=bool(topics))
    printer = output.printer()
    options = read_options(printer, skip_damaged=skip_damaged)
    span = _Span(parse_time("--from", since), parse_time("--to", until))
    choice = Choice(topics, None, everything)
    with where.open() as store:
        if msg_id is not None:
            batches = iter(query_by_msg_id(store, msg_id, options).to_batches())
        elif uniq_key is not None:
            batches = _by_uniq_key(store, choice, uniq_key, options)
        elif key is not None:
            batches = _by_key(store, choice, key, span, limit, options)
        else:
            batches = _by_time(store, choice, span, options)
        count = print_batches(printer, batches, limit)
    if count == 0 and output.is_table:
        say("no message found.")


class _Span:
    """A range of storeTimestamp in milliseconds, including both ends."""

    def __init__(self, since: int | None, until: int | None) -> None:
        if since is not None and until is not None and since >= until:
            raise OptionError(f"--from ({since}) is not earlier than --to ({until}).")
        self.begin = 0 if since is None else since
        self.end = 2**63 - 1 if until is None else until - 1


def _check_question(
    key: str | None, msg_id: str | None, uniq_key: str | None, *, in_time: bool, has_topics: bool
) -> None:
    asked = [
        name
        for name, value in (("--key", key), ("--id", msg_id), ("--uniq-key", uniq_key))
        if value is not None
    ]
    if not asked and not in_time:
        raise OptionError("Nothing to search for: give --key, --id, --uniq-key, --from or --to.")
    if len(asked) > 1:
        raise OptionError(f"Options {' and '.join(asked)} contradict each other: give only one.")
    if in_time and asked and key is None:
        raise OptionError(f"Option {asked[0]} finds messages of any time: remove --from and --to.")
    if msg_id is not None and has_topics:
        raise OptionError(
            "Option --id finds the message at a physical offset, in any topic: remove --topic."
        )


def _topics(store: Store, choice: Choice) -> list[str]:
    """Return the topics to search; the reader reports missing ones."""
    return list(dict.fromkeys(topic for topic, _ in choice.names(store)))


def _by_uniq_key(
    store: Store, choice: Choice, uniq_key: str, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    from rmqstore_spark.reader.lookup import read_by_key, uniq_key_wanted

    if choice.topics and not store.lacks_queues:
        _topics(store, choice)
    return read_by_key(store, uniq_key_wanted(store, choice.topics or None, uniq_key), options)


def _by_key(
    store: Store,
    choice: Choice,
    key: str,
    span: _Span,
    limit: int | None,
    options: ReadOptions,
) -> Iterator[pa.RecordBatch]:
    """Yield the newest messages with a key, of any of the topics, oldest first."""
    from rmqstore_spark.reader.key_search import KeyWanted
    from rmqstore_spark.reader.lookup import read_by_key

    topics = choice.topics if store.lacks_queues else _topics(store, choice)
    if topics is None:
        raise OptionError(f"{store.path} has no queues, so its topics are unknown: give --topic.")
    wanted = KeyWanted(frozenset({key}), frozenset(topics), span.begin, span.end)
    return read_by_key(store, wanted, options, limit)


def _by_time(
    store: Store, choice: Choice, span: _Span, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    from rmqstore_spark.reader.lookup import query_by_time

    store.require_queues("query by time", "Read its messages with `rmqstore read`")
    for topic in _topics(store, choice):
        yield from query_by_time(
            store, topic, begin_ms=span.begin, end_ms=span.end, options=options
        )
