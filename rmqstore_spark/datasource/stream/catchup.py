"""Move a stream's offsets: find losses, new messages, and how many of them a batch reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmqstore_spark.datasource.offsets import Mark, Offsets, QueueKey
from rmqstore_spark.datasource.options.parsing import Options
from rmqstore_spark.datasource.resolve import lose
from rmqstore_spark.datasource.spec import AnyQueue
from rmqstore_spark.datasource.stores import ChosenQueue
from rmqstore_spark.datasource.stream.limits import rows_within, share
from rmqstore_spark.errors import CorruptStoreError, RmqStoreError, SegmentExpiredError
from rmqstore_spark.reader.plan import average_size
from rmqstore_spark.reader.queue import Queue
from rmqstore_spark.reader.rows.splits import QueueRange
from rmqstore_spark.reader.store import Store

__all__ = ["advanced", "batch_ranges", "limited_ends", "reconciled", "starting_marks"]

Queues = Mapping[QueueKey, ChosenQueue]

_MOST_ENTRIES: Final = 1 << 16
_UNKNOWN: Final = -1
_DEAD: Final = -2  # an entry that is not a message


def starting_marks(starts: Mapping[QueueKey, int], queues: Queues) -> Offsets:
    """Convert the offsets at which a stream starts to marks."""
    return {
        key: Mark(start, physical_before(queues[key].queue, start), start)
        for key, start in starts.items()
    }


def physical_before(queue: AnyQueue, offset: int) -> int:
    """Return the physical offset of the entry before an offset; -1 if expired or damaged."""
    return max(_UNKNOWN, _look_before(queue, offset))


def _look_before(queue: AnyQueue, offset: int) -> int:
    if offset <= queue.first_slot:
        return _UNKNOWN
    try:
        return queue.physical_offset(offset - 1)
    except SegmentExpiredError:
        return _UNKNOWN
    except CorruptStoreError:
        return _DEAD


def _is_another(queue: AnyQueue, mark: Mark) -> bool:
    """Return whether the entry before a mark has changed since the mark was made."""
    now = _look_before(queue, mark.next)
    return now != mark.last_physical and now != _UNKNOWN and mark.last_physical != _UNKNOWN


def reconciled(marks: Offsets, queues: Queues, options: Options, checked: Offsets) -> Offsets:
    """Compare the marks of a checkpoint to the current queues.

    Args:
        marks: where the next micro-batch starts.
        queues: the queues that the stream reads now.
        options: the query's options.
        checked: marks that were correct before; updated in place.

    Returns:
        The marks. A queue that is new, was cut or was recreated begins at its earliest message. A
        queue that no longer exists is left out.

    Raises:
        DataLossError: messages are lost, and `failOnDataLoss` is set.
    """
    result: Offsets = {}
    for key, mark in marks.items():
        chosen = queues.get(key)
        if chosen is None:
            lose(
                options, f"Queue {key} no longer exists; the stream had read it up to {mark.next}."
            )
            continue
        # Without new messages, a mark that was correct before is still correct.
        if chosen.queue.max_offset != mark.next or checked.get(key) != mark:
            mark = _checked(key, mark, chosen.queue, options)
            checked[key] = mark
        result[key] = mark
    for key, chosen in queues.items():
        if key not in marks:
            result[key] = _from_earliest(chosen.queue)
    return result


def _from_earliest(queue: AnyQueue) -> Mark:
    return Mark(queue.min_offset, physical_before(queue, queue.min_offset), queue.min_offset)


def _checked(key: QueueKey, mark: Mark, queue: AnyQueue, options: Options) -> Mark:
    if queue.max_offset < mark.next:
        lose(
            options,
            f"The stream had read {key} up to {mark.next}, but the queue now ends at "
            f"{queue.max_offset}: it was cut, or deleted and recreated.",
            f"The stream continues at its first message, {queue.min_offset}.",
        )
        return _from_earliest(queue)
    if _is_another(queue, mark):
        lose(
            options,
            f"The stream had read {key} up to {mark.next}, but the message before that offset (at "
            f"{mark.last_physical} in the log) has changed or is missing: the queue was cut, or "
            "deleted and recreated.",
            f"The stream continues at its first message, {queue.min_offset}.",
        )
        return _from_earliest(queue)
    if queue.min_offset > mark.next:
        lose(
            options,
            f"{queue.min_offset - mark.next} messages of {key} have expired unread: the stream "
            f"had read up to {mark.next}, but the queue now begins at {queue.min_offset}.",
        )
        return _from_earliest(queue)
    return mark


def advanced(marks: Offsets, ends: Mapping[QueueKey, int], queues: Queues) -> Offsets:
    """Move marks to the end of a micro-batch.

    Args:
        marks: where it starts (`as_start`).
        ends: where it ends; queues that are not in it keep their mark.
        queues: the queues of the marks.
    """
    result = {}
    for key, mark in marks.items():
        end = ends.get(key, mark.next)
        if end > mark.next:
            mark = Mark(end, physical_before(queues[key].queue, end), mark.begin)
        result[key] = mark
    return result


def limited_ends(
    marks: Offsets, ends: Mapping[QueueKey, int], queues: Queues, options: Options
) -> dict[QueueKey, int]:
    """Divide a micro-batch's limits among the queues.

    Args:
        marks: where it starts.
        ends: how far each queue reaches.
        queues: the queues of the marks.
        options: the query's options, with the limits of rows and bytes.
    """
    keys = [key for key, end in ends.items() if end > marks[key].next]
    rows = [ends[key] - marks[key].next for key in keys]
    if options.max_rows is not None:
        rows = share(rows, options.max_rows)
    if options.max_bytes is not None:
        rows = _within_bytes(keys, rows, marks, queues, options.max_bytes)
    return {key: marks[key].next + count for key, count in zip(keys, rows, strict=True)}


def _within_bytes(
    keys: list[QueueKey], rows: list[int], marks: Offsets, queues: Queues, limit: int
) -> list[int]:
    sizes = []
    for key, count in zip(keys, rows, strict=True):
        start = marks[key].next
        wanted = QueueRange(key.topic, key.queue_id, start, start + count)
        store = queues[key].store
        if isinstance(store, Store):
            sizes.append(average_size(store, wanted))
        else:
            sizes.append(store.average_size(wanted))
    backlogs = [max(count, int(count * size)) for count, size in zip(rows, sizes, strict=True)]
    if sum(backlogs) <= limit:
        return rows
    return [
        _count_within(queues[key].queue, marks[key].next, count, budget, size)
        for key, count, budget, size in zip(keys, rows, share(backlogs, limit), sizes, strict=True)
    ]


def _count_within(queue: AnyQueue, start: int, count: int, budget: int, size: float) -> int:
    """Return how many of the next messages fit into a number of bytes.

    They are counted by their exact sizes, or by the average if only messages themselves have them.
    """
    if not isinstance(queue, Queue):
        return min(count, max(1, int(budget / max(size, 1.0))))
    taken = 0
    while taken < count:
        step = min(count - taken, _MOST_ENTRIES, int(budget / max(size, 1.0)) + 16)
        sizes = queue.entries(start + taken, start + taken + step)["size"]
        fits = rows_within(sizes, budget) if taken == 0 else rows_within(sizes, budget, least=0)
        taken += fits
        if fits < step:
            break
        budget -= int(sizes.clip(min=0).sum(dtype="int64"))
    return taken


def batch_ranges(
    start: Offsets, end: Offsets, queues: Queues, options: Options
) -> dict[QueueKey, tuple[int, int]]:
    """Find the ranges that a micro-batch reads, also if it is planned again after a restart.

    If the batch was the first to read a queue, its end holds where the queue begins (see
    `offsets`). `start` applies only to the other queues; after a restart it can even be past the
    end.

    Raises:
        DataLossError: messages of the batch no longer exist, and `failOnDataLoss` is set.
    """
    ranges = {}
    for key, mark in end.items():
        begin = mark.begin
        if begin is None:
            if key not in start:
                raise RmqStoreError(
                    f"The checkpoint has an end offset of {key}, but no start offset. Start the "
                    "stream with another checkpointLocation and explicit startingOffsets."
                )
            begin = start[key].next
        if begin >= mark.next:
            continue
        chosen = queues.get(key)
        if chosen is None:
            lose(
                options,
                f"Queue {key} no longer exists; offsets {begin} to {mark.next - 1} cannot be read.",
            )
            continue
        queue = chosen.queue
        if mark.next > queue.max_offset or _is_another(queue, mark):
            lose(
                options,
                f"Offsets {begin} to {mark.next - 1} of {key} hold other messages than before: "
                "the queue was cut, or deleted and recreated.",
            )
            continue
        if begin < queue.min_offset:
            gone = min(queue.min_offset, mark.next)
            lose(options, f"{gone - begin} messages of {key}, from {begin} on, have expired.")
            begin = gone
        if begin < mark.next:
            ranges[key] = begin, mark.next
    return ranges
