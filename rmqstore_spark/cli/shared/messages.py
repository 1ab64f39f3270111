"""Reads the messages of queue ranges, in the order in which the broker stored them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rmqstore_spark.errors import OptionError
from rmqstore_spark.reader.texts import parse_keys, parse_tags

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqstore_spark.cli.shared.printing import Printer
    from rmqstore_spark.reader.options import QueueRange, ReadOptions
    from rmqstore_spark.reader.store import Store

MOST_ROWS: Final = 1_000
"""Maximum rows of a batch: a batch is printed only when it is complete."""

_MOST_BYTES: Final = 4 << 20  # the same limit in bytes

_WHOLE_LOG: Final = 1 << 62


def read_options(
    printer: Printer,
    *,
    tags: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    skip_damaged: bool = False,
    skip_expired: bool = False,
    most: int | None = None,
) -> ReadOptions:
    """Return the reader's options for a printer; `most` messages are needed.

    Raises:
        OptionError: tags or keys are invalid.
    """
    from rmqstore_spark.reader.options import ReadOptions

    return ReadOptions(
        columns=printer.columns,
        mode="DROPMALFORMED" if skip_damaged else "FAILFAST",
        fail_on_data_loss=not (skip_expired or skip_damaged),
        tags=_any_of("--tag", tags, parse_tags),
        keys=_any_of("--key", keys, parse_keys),
        batch_rows=MOST_ROWS if most is None or tags or keys else min(most, MOST_ROWS),
        batch_bytes=_MOST_BYTES,
    )


def _any_of(
    option: str, texts: Sequence[str] | None, parse: Callable[[str], frozenset[str] | None]
) -> frozenset[str] | None:
    """Return the values of a repeatable option; None for all."""
    found: set[str] = set()
    for text in texts or ():
        try:
            named = parse(text)
        except ValueError as error:
            raise OptionError(f"{option} {error}, not {text!r}.") from None
        if named is None:
            return None
        found |= named
    return frozenset(found) or None


def read_ranges(
    store: Store, ranges: Sequence[QueueRange], options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of some ranges; those of several queues in the order of the log."""
    from rmqstore_spark.reader.options import QueueSplit
    from rmqstore_spark.reader.plan import PlanLimits, plan, read_split

    if len(ranges) == 1:
        yield from read_split(store, QueueSplit(ranges[0], 0), options)
    else:
        for split in plan(store, ranges, PlanLimits(max_bytes=_WHOLE_LOG), by="commitlog"):
            yield from read_split(store, split, options)
