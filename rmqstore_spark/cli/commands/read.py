"""`rmqstore read`: prints messages of a store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rmqstore_spark.cli.shared.choosing import Bounds, Choice, ranges_of
from rmqstore_spark.cli.shared.messages import read_options, read_ranges
from rmqstore_spark.cli.shared.parameters import (
    AllTopics,
    AsJson,
    AsRaw,
    BrokerName,
    Columns,
    CommitLogPaths,
    Keys,
    QueueIds,
    Separator,
    SkipDamaged,
    StorePath,
    Tags,
    Topics,
    open_store,
    parse_time,
)
from rmqstore_spark.cli.shared.printing import make_printer, parse_columns, print_batches
from rmqstore_spark.cli.shared.terminal import say
from rmqstore_spark.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqstore_spark.reader.options import ReadOptions
    from rmqstore_spark.reader.store import Store

_IN_A_TABLE: Final = 20

_Offset = typer.Option(
    "--offset", "-o", min=0, metavar="N", help="Start at this queue offset.", show_default=False
)
_EndOffset = typer.Option(
    "--end-offset", min=0, metavar="N", help="End before this queue offset.", show_default=False
)
_From = typer.Option(
    "--from",
    metavar="TIME",
    help="Start each queue at its first message stored at or after this time (milliseconds or "
    "ISO-8601).",
    show_default=False,
)
_To = typer.Option(
    "--to",
    metavar="TIME",
    help="End each queue before its first message stored at or after this time.",
    show_default=False,
)
_Limit = typer.Option(
    "--limit",
    "-n",
    min=0,
    metavar="N",
    help=f"Maximum number of messages, 0 for all.  [default: {_IN_A_TABLE} in a table, else all]",
    show_default=False,
)
_Scan = typer.Option(
    "--scan",
    help="Read the CommitLog instead of the queues, including prepared and rolled-back records.",
)


def read(
    store_path: StorePath,
    topics: Topics = None,
    queue_ids: QueueIds = None,
    offset: Annotated[int | None, _Offset] = None,
    end_offset: Annotated[int | None, _EndOffset] = None,
    since: Annotated[str | None, _From] = None,
    until: Annotated[str | None, _To] = None,
    limit: Annotated[int | None, _Limit] = None,
    tags: Tags = None,
    keys: Keys = None,
    columns: Columns = None,
    as_json: AsJson = False,
    as_raw: AsRaw = False,
    separator: Separator = "",
    scan: Annotated[bool, _Scan] = False,
    everything: AllTopics = False,
    skip_damaged: SkipDamaged = False,
    broker_name: BrokerName = None,
    commitlog_paths: CommitLogPaths = None,
) -> None:
    """Print messages, in the order in which they were stored.

    A table shows the main columns and truncates long values. --json prints a line of JSON for each
    message, --raw only the bodies.
    """
    printer = make_printer(
        as_json=as_json,
        as_raw=as_raw,
        columns=parse_columns(columns),
        separator=separator,
        single_topic=bool(topics) and len(topics or ()) == 1 and not scan,
    )
    in_a_table = not (as_json or as_raw)
    most = (_IN_A_TABLE if in_a_table else None) if limit is None else limit or None
    options = read_options(printer, tags=tags, keys=keys, skip_damaged=skip_damaged, most=most)
    bounds = Bounds(offset, end_offset, parse_time("--from", since), parse_time("--to", until))
    choice = Choice(topics, queue_ids, everything)
    with open_store(store_path, broker_name, commitlog_paths) as store:
        if not (scan or store.has_queues):
            say(f"{store.path} has no queues: reading its CommitLog instead, as with --scan.")
        if scan or not store.has_queues:
            batches = _scan(store, choice, bounds, options)
        else:
            batches = read_ranges(store, ranges_of(choice.queues(store), bounds), options)
        count = print_batches(printer, batches, most)
    if in_a_table and count == 0:
        say("no message found.")
    elif limit is None and count == most:
        say(f"showing the first {most} messages; --limit N shows more, --limit 0 all.")


def _scan(
    store: Store, choice: Choice, bounds: Bounds, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    from rmqstore_spark.reader.options import ScanSplit
    from rmqstore_spark.reader.plan import read_split

    if bounds != Bounds() or choice.queue_ids is not None:
        raise OptionError(
            "Options --queue, --offset, --end-offset, --from and --to need queues and cannot be "
            "used when the CommitLog is read instead."
        )
    topics = None if choice.topics is None else frozenset(choice.topics)
    return read_split(store, ScanSplit(store.min_offset, store.scan_end(), topics), options)
