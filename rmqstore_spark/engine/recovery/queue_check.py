"""Checks how far a store's queues are complete, and which are missing, when it is opened."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rmqstore_spark.engine.dispatch.queues import ConsumeQueues
from rmqstore_spark.engine.recovery.clean_close import StoreState
from rmqstore_spark.engine.recovery.queue_survey import QueueSurvey
from rmqstore_spark.errors import CorruptStoreError, RmqStoreError, SegmentExpiredError
from rmqstore_spark.files.directory import StoreDirectory
from rmqstore_spark.layout.constants import LMQ_PREFIX, SCHEDULE_TOPIC, is_system_topic
from rmqstore_spark.layout.fields import MAX_RECORD_SIZE, MIN_RECORD_SIZE
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.log.end import record_head
from rmqstore_spark.reader.queue import Queue

_NO_CUT: Final = (1 << 63) - 1
_LOOKED_OVER: Final = 16 << 20  # bytes of the log that are walked after a clean stop
_FARTHEST: Final = 1 << 46  # bytes: no log is longer


@dataclass(frozen=True)
class QueueCheck:
    """The result of the check.

    Attributes:
        incomplete: whether a queue lacks, or may lack, entries from before the start of the walk.
            Then the whole log must be walked.
        absent: (topic, queueId) of missing queues that somebody has consumed from.
        is_wanted: returns whether to create a missing queue for a record; called with its topic,
            queueId, and the record's offset in it.
    """

    incomplete: bool
    absent: frozenset[tuple[str, int]]
    is_wanted: Callable[[str, int, int], bool]


def clean_start(
    directory: StoreDirectory, log: CommitLog, ends: Mapping[tuple[str, int], int]
) -> tuple[int, int]:
    """Return where to start the walk over the log of a store that was closed cleanly.

    Args:
        ends: where the record of each queue's last entry ends.

    Returns:
        Physical offset of a record, and one past the newest record that a queue names.
    """
    newest: tuple[str, int] | None = None
    named_end = 0
    for route, end in ends.items():
        if named_end < end <= log.file_end:
            newest, named_end = route, end
    target = named_end - _LOOKED_OVER
    if newest is None or target <= log.min_offset:
        return log.min_offset, named_end
    found = _queue(directory, log, *newest, _NO_CUT, killed=False)
    slots = range(found.max_offset - 1)
    slot = bisect_left(slots, target, found.min_offset, key=found.stated_offset)
    start = found.stated_offset(slot)
    if log.min_offset <= start < named_end and record_head(log, start) is not None:
        return start, named_end
    segment = log.segment_at(target)
    return (segment.start if segment else log.min_offset), named_end


def check_queues(
    directory: StoreDirectory,
    log: CommitLog,
    start: int,
    survey: QueueSurvey,
    queues: ConsumeQueues,
    state: StoreState,
    *,
    clean: bool,
) -> QueueCheck:
    """Load a store's queues, each up to the place where the walk over the log started.

    Args:
        start: physical offset of the record where it started.
        survey: the survey of the queues.
        queues: the queues to load.
        state: the recorded state of the store.
        clean: whether the store was closed cleanly.
    """
    known, plain_queues = survey.bounds_before(start), dict(survey.queues())
    there: set[tuple[str, int]] = set()
    is_broken, has_entries, log_begin = False, False, log.min_offset
    usual = [survey.file_size]
    for route in _routes(directory):
        bounds = known.get(route)
        plain = None if bounds is None else plain_queues[route]
        if plain is not None:
            first, sizes = plain.first_slot, usual
        else:
            queue = _queue(directory, log, *route, start, killed=False)
            if not queue.segments:
                continue
            first, sizes = queue.first_slot, [segment.size for segment in queue.segments]
            bounds = _bounds(queue)
            # An unwritten entry before others means that a part of the file was lost.
            ended = _queue(directory, log, *route, start, killed=True)
            if bounds is not None and bounds != _bounds(ended):
                bounds = None
        there.add(route)
        queues.load(*route, sizes, bounds, first, plain.end if plain else -1)
        is_broken |= bounds is None or _may_lack_first(route, first, bounds, log_begin, state)
        has_entries |= bounds is not None and bounds[1] > first
    is_lost = not has_entries and start > log_begin
    configured = _configured(directory)
    absent, missing = (
        frozenset(route for route in routes - there if configured is None or route[0] in configured)
        for routes in (_consumed(directory), state.queues)
    )
    missing |= absent - state.absent
    everything_lost = not there

    def is_wanted(topic: str, queue_id: int, slot: int) -> bool:
        del queue_id
        if everything_lost or configured is None or topic in configured:
            return True
        if is_system_topic(topic) or topic.startswith(LMQ_PREFIX):
            return True
        # Otherwise it was deleted: its folder is gone, and topics.json does not name it. But after
        # a power cut, topics.json may lack a topic whose first messages are in the log.
        return not clean and slot == 0

    return QueueCheck(is_broken or is_lost or bool(missing), absent, is_wanted)


def _may_lack_first(
    route: tuple[str, int],
    first_slot: int,
    bounds: tuple[int, int],
    log_begin: int,
    state: StoreState,
) -> bool:
    """Return whether a queue's first files may have been lost.

    A file expires when all its messages have, so the next one usually begins with expired messages
    too. If it does not, the messages before it expired to the very last one, which is rare, or
    their files were lost. Only the log can decide that. It is asked once: then the queue's
    beginning is recorded.
    """
    if log_begin == 0:  # nothing has expired
        return first_slot > 0
    if first_slot in (0, state.begins.get(route)):
        return False
    return bounds[0] == first_slot


def has_entries(directory: StoreDirectory, log: CommitLog) -> bool:
    """Return whether any queue has an entry."""
    found = (_queue(directory, log, *route, _NO_CUT, killed=False) for route in _routes(directory))
    return any(
        len(queue.segments) and ((bounds := _bounds(queue)) is None or bounds[1] > queue.first_slot)
        for queue in found
    )


def record_ends(
    directory: StoreDirectory, log: CommitLog, survey: QueueSurvey
) -> dict[tuple[str, int], int]:
    """Return where the record that the last entry of each queue names ends in the log.

    Queues without entries are left out, and those with garbage for one.
    """
    return {
        route: offset + size
        for route, offset, size in _last_entries(directory, log, survey)
        if 0 <= offset < _FARTHEST and MIN_RECORD_SIZE <= size <= MAX_RECORD_SIZE
    }


def entries_past(
    directory: StoreDirectory,
    log: CommitLog,
    survey: QueueSurvey,
    routes: Collection[tuple[str, int]],
    end: int,
) -> dict[tuple[str, int], int]:
    """Return how many entries of each queue name records past a physical offset.

    Args:
        routes: the queues to look at.
        end: the physical offset.
    """
    known = survey.bounds_before(end)
    found = {}
    for route in routes:
        plain = survey.queue(*route) if route in known else None
        if plain is not None:
            found[route] = plain.end - known[route][1]
            continue
        bounds = _bounds(_queue(directory, log, *route, _NO_CUT, killed=False))
        before = _bounds(_queue(directory, log, *route, end, killed=False))
        if bounds is not None and before is not None:
            found[route] = bounds[1] - before[1]
    return {route: count for route, count in found.items() if count > 0}


def _bounds(queue: Queue) -> tuple[int, int] | None:
    """Return the least offset and one past the last; None if the files are inconsistent."""
    if queue.segments.gaps or queue.segments.odd_sizes:
        return None
    try:
        return queue.min_offset, queue.max_offset
    except (SegmentExpiredError, CorruptStoreError):
        return None


def _routes(directory: StoreDirectory) -> Iterator[tuple[str, int]]:
    for topic, numbers in directory.topology.queues.items():
        for queue_id in numbers:
            yield topic, queue_id


def _queue(
    directory: StoreDirectory, log: CommitLog, topic: str, queue_id: int, end: int, *, killed: bool
) -> Queue:
    """Open a queue that ends before the records at or past a physical offset."""
    segments = directory.queue(topic, queue_id)
    cut = end, killed
    return Queue(directory.queue_format, log, topic, queue_id, segments, None, lambda _: cut)


def _last_entries(
    directory: StoreDirectory, log: CommitLog, survey: QueueSurvey
) -> Iterator[tuple[tuple[str, int], int, int]]:
    """Yield physical offset and size of the record that each queue's last entry names."""
    plain_queues = dict(survey.queues())
    for route in _routes(directory):
        plain = plain_queues.get(route)
        if plain is not None:
            if plain.least < plain.end:
                yield route, plain.physical_offset, plain.size
            continue
        queue = _queue(directory, log, *route, _NO_CUT, killed=False)
        bounds = _bounds(queue)
        if bounds is not None and bounds[0] < bounds[1]:
            entry = queue.entries(bounds[1] - 1, bounds[1])
            yield route, int(entry["physicalOffset"][0]), int(entry["size"][0])


def _configured(directory: StoreDirectory) -> frozenset[str] | None:
    """Return the topics that topics.json names; None if it names none."""
    table = _config(directory, "topics.json").get("topicConfigTable")
    return frozenset(map(str, table)) if isinstance(table, dict) and table else None


def _consumed(directory: StoreDirectory) -> set[tuple[str, int]]:
    """Return queues that were consumed or delivered from: they have had messages."""
    found: set[tuple[str, int]] = set()
    groups = _config(directory, "consumerOffset.json").get("offsetTable")
    for key, numbers in groups.items() if isinstance(groups, dict) else ():
        if isinstance(numbers, dict):
            topic = str(key).partition("@")[0]
            found |= {(topic, int(n)) for n, at in numbers.items() if _is_past_begin(n, at)}
    levels = _config(directory, "delayOffset.json").get("offsetTable")
    for level, at in levels.items() if isinstance(levels, dict) else ():
        if _is_past_begin(level, at) and int(level) > 0:
            found.add((SCHEDULE_TOPIC, int(level) - 1))
    return found


def _is_past_begin(number: Any, offset: Any) -> bool:
    return str(number).isdecimal() and isinstance(offset, int) and offset > 0


def _config(directory: StoreDirectory, name: str) -> dict[str, Any]:
    try:
        found = directory.config(name)
    except (RmqStoreError, OSError):
        return {}
    return found if isinstance(found, dict) else {}
