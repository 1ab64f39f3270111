"""Selects queues, and ranges of their messages, and reads these in the order of the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout.constants import is_system_topic
from rmqstore_spark.reader.texts import parse_keys, parse_tags

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqstore_spark.cli.shared.printing import Printer
    from rmqstore_spark.reader.options import QueueRange, ReadOptions
    from rmqstore_spark.reader.queue import Queue
    from rmqstore_spark.reader.store import Store


@dataclass(frozen=True)
class Choice:
    """The queues that a command works on.

    Attributes:
        topics: names of topics; None for all topics except system topics.
        queue_ids: only these queues of each topic.
        everything: whether None includes system topics.
    """

    topics: Sequence[str] | None = None
    queue_ids: Sequence[int] | None = None
    everything: bool = False

    def queues(self, store: Store, *, missing_ok: bool = False) -> list[Queue]:
        """Return the chosen queues of a store, by topic and number; see `names`."""
        return store.named_queues(self.names(store, missing_ok=missing_ok))

    def names(self, store: Store, *, missing_ok: bool = False) -> list[tuple[str, int]]:
        """Return topic and number of the chosen queues of a store.

        Args:
            missing_ok: whether named topics or queues may be missing.

        Raises:
            TopicNotFoundError: a named topic or queue does not exist.
        """
        if not missing_ok:
            self._require_named(store)
        known = store.directory.topology.queues
        if self.topics is None:
            chosen = [name for name in known if self.everything or not is_system_topic(name)]
        else:
            chosen = [name for name in dict.fromkeys(self.topics) if name in known]
        return [
            (name, queue_id)
            for name in chosen
            for queue_id in known[name]
            if self.queue_ids is None or queue_id in self.queue_ids
        ]

    def _require_named(self, store: Store) -> None:
        if self.topics is None:
            there = {number for ids in store.directory.topology.queues.values() for number in ids}
            missing = [number for number in self.queue_ids or () if number not in there]
            if missing and store.has_queues:
                raise OptionError(f"No topic of {store.path} has a queue {missing[0]}.")
        for name in self.topics or ():
            for queue_id in self.queue_ids or (() if holds_topic(store, name) else (0,)):
                if not _awaits_queue(store, name, queue_id):
                    # A missing queue raises an error that lists the existing ones.
                    store.queue(name, queue_id)


def holds_topic(store: Store, name: str) -> bool:
    """Return whether a store has queues of a topic, or may get some: topics.json names it."""
    # topics.json is read only if necessary.
    return name in store.directory.topology.queues or any(
        topic.name == name for topic in store.known_topics()
    )


def _awaits_queue(store: Store, name: str, queue_id: int) -> bool:
    """Return whether a queue has no files yet, but topics.json names it."""
    if queue_id in store.directory.topology.queues.get(name, ()):
        return False
    return any(
        topic.name == name
        and queue_id < max(topic.read_queue_nums or 0, topic.write_queue_nums or 0)
        for topic in store.known_topics()
    )


@dataclass(frozen=True)
class Bounds:
    """Where reading begins and ends in each queue; None leaves a side open.

    Attributes:
        start: first queue offset.
        end: one past the last queue offset.
        since: only messages stored at or after, milliseconds.
        until: only messages stored before, milliseconds.
    """

    start: int | None = None
    end: int | None = None
    since: int | None = None
    until: int | None = None

    def __post_init__(self) -> None:
        if self.start is not None and self.end is not None and self.start > self.end:
            raise OptionError(f"--offset ({self.start}) is greater than --end-offset ({self.end}).")
        if self.since is not None and self.until is not None and self.since > self.until:
            raise OptionError(f"--from ({self.since}) is later than --to ({self.until}).")

    def of(self, queue: Queue) -> QueueRange:
        """Return the range of one queue."""
        from rmqstore_spark.reader.options import QueueRange

        first, last = queue.min_offset, queue.max_offset
        start = first if self.start is None else min(max(first, self.start), last)
        end = last if self.end is None else max(first, min(last, self.end))
        if self.since is not None:
            found = queue.offset_at(self.since)
            start = last if found is None else max(start, found)
        if self.until is not None:
            found = queue.offset_at(self.until)
            end = end if found is None else min(end, found)
        return QueueRange(queue.topic, queue.queue_id, start, max(start, end))


def ranges_of(queues: Sequence[Queue], bounds: Bounds) -> list[QueueRange]:
    """Return the ranges of some queues that lie within bounds, without empty ones.

    Raises:
        OptionError: the first offset is not in any of the queues.
    """
    if bounds.start is not None and queues:
        _require_held(queues, bounds.start)
    return [found for queue in queues if (found := bounds.of(queue)).count]


def _require_held(queues: Sequence[Queue], offset: int) -> None:
    if any(queue.min_offset <= offset <= queue.max_offset for queue in queues):
        return
    shown = "; ".join(
        f"{queue.topic}/{queue.queue_id} holds {queue.min_offset} to {queue.max_offset - 1}"
        if queue.max_offset > queue.min_offset
        else f"{queue.topic}/{queue.queue_id} is empty, and its next offset is {queue.max_offset}"
        for queue in queues[:4]
    )
    more = f"; and {len(queues) - 4} more queues" if len(queues) > 4 else ""
    raise OptionError(f"No queue contains --offset {offset}: {shown}{more}.")


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
