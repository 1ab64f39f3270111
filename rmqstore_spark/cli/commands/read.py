"""`rmqstore read`: prints messages of a store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rmqstore_spark.cli.shared.choosing import Bounds, Choice, ranges_of, read_options, read_ranges
from rmqstore_spark.cli.shared.parameters import (
    AllTopics,
    Keys,
    QueueIds,
    SkipDamaged,
    StoreAt,
    Tags,
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

_IN_A_TABLE: Final = 20

_Offset = typer.Option("--offset", "-o", min=0, metavar="N", help="Start at this queue offset.")
_EndOffset = typer.Option("--end-offset", min=0, metavar="N", help="End before this queue offset.")
_From = typer.Option(
    "--from",
    metavar="TIME",
    help="Start each queue at its first message stored at or after this time (milliseconds or "
    "ISO-8601).",
)
_To = typer.Option(
    "--to",
    metavar="TIME",
    help="End each queue before its first message stored at or after this time.",
)
_Limit = typer.Option(
    "--limit",
    "-n",
    min=0,
    metavar="N",
    help=f"Maximum number of messages, 0 for all.  [default: {_IN_A_TABLE} in a table, else all]",
)
_Scan = typer.Option(
    "--scan",
    help="Read the CommitLog instead of the queues, including prepared and rolled-back records.",
)


def read(
    topics: Topics = None,
    queue_ids: QueueIds = None,
    offset: Annotated[int | None, _Offset] = None,
    end_offset: Annotated[int | None, _EndOffset] = None,
    since: Annotated[str | None, _From] = None,
    until: Annotated[str | None, _To] = None,
    limit: Annotated[int | None, _Limit] = None,
    tags: Tags = None,
    keys: Keys = None,
    *,
    output: MessageOutput,
    scan: Annotated[bool, _Scan] = False,
    everything: AllTopics = False,
    skip_damaged: SkipDamaged = False,
    where: StoreAt,
) -> None:
    """Print messages, in the order in which they were stored.

    A table shows the main columns and truncates long values. --json prints a line of JSON for each
    message, --raw only the bodies.
    """
    printer = output.printer(single_topic=len(topics or ()) == 1 and not scan)
    most = (_IN_A_TABLE if output.is_table else None) if limit is None else limit or None
    options = read_options(printer, tags=tags, keys=keys, skip_damaged=skip_damaged, most=most)
    bounds = Bounds(offset, end_offset, parse_time("--from", since), parse_time("--to", until))
    choice = Choice(topics, queue_ids, everything)
    with where.open() as store:
        lacks_queues = store.lacks_queues
        if lacks_queues and not scan:
            say(f"{store.path} has no queues: reading its CommitLog instead, as with --scan.")
        if scan or lacks_queues:
            batches = _scan(store, choice, bounds, options)
        else:
            batches = read_ranges(store, ranges_of(choice.queues(store), bounds), options)
        count = print_batches(printer, batches, most)
    if output.is_table and count == 0:
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
