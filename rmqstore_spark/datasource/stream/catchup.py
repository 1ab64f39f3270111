"""Move a stream's offsets: find losses, new messages, and how many of them a batch reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.datasource.offsets import Mark, Offsets, QueueKey
from rmqstore_spark.datasource.options.table import PositionOptions, TriggerOptions
from rmqstore_spark.datasource.resolve import lose
from rmqstore_spark.datasource.sources.source import ChosenQueue, Source
from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.reader.before import UNKNOWN, Before
from rmqstore_spark.reader.options import QueueRange

Queues = Mapping[QueueKey, ChosenQueue]

_MOST_ENTRIES: Final = 1 << 16


def starting_marks(starts: Mapping[QueueKey, int], queues: Queues) -> Offsets:
    """Convert the offsets at which a stream starts to marks."""
    before = before_all(starts, queues)
    return {key: _mark(start, before[key], start) for key, start in starts.items()}


def _mark(offset: int, before: Before, begin: int | None) -> Mark:
    return Mark(offset, max(UNKNOWN, before.physical), begin, before.fingerprint)


def before_all(offsets: Mapping[QueueKey, int], queues: Queues) -> dict[QueueKey, Before]:
    """Look at the records before some offsets, those of one source together.

    Args:
        offsets: an offset in each queue, at most one past its end.
        queues: at least the queues of these offsets.
    """
    of_sources: dict[Source, list[QueueKey]] = {}
    for key in offsets:
        of_sources.setdefault(queues[key].source, []).append(key)
    found: dict[QueueKey, Before] = {}
    for source, own in of_sources.items():
        looked = source.before([(queues[key].queue, offsets[key]) for key in own])
        found.update(zip(own, looked, strict=True))
    return found


def is_another(mark: Mark, now: Before) -> bool:
    """Return whether the record before a mark has changed since the mark was made."""
    if UNKNOWN in (now.physical, mark.last_physical):
        return False
    if now.physical != mark.last_physical:
        return True
    known = now.fingerprint and mark.fingerprint
    return bool(known) and now.fingerprint != mark.fingerprint


def reconciled(
    marks: Offsets, queues: Queues, positions: PositionOptions, checked: Offsets
) -> Offsets:
    """Compare the marks of a checkpoint to the current queues.

    Args:
        marks: where the next micro-batch starts, in queues that exist.
        queues: the queues that the stream reads now.
        positions: say whether a loss is allowed.
        checked: marks that were correct before; updated in place.

    Returns:
        The marks. A queue that is new, was cut or was recreated begins at its earliest message.

    Raises:
        DataLossError: messages are lost, and `failOnDataLoss` is set.
    """
    # Without new messages, a mark that was correct before is still correct.
    unsure = {
        key: mark.next
        for key, mark in marks.items()
        if queues[key].queue.max_offset != mark.next or checked.get(key) != mark
    }
    before = before_all(
        {key: at for key, at in unsure.items() if at <= queues[key].queue.max_offset}, queues
    )
    again: set[QueueKey] = set()
    for key in unsure:
        if not _holds(key, marks[key], queues[key], before.get(key), positions):
            again.add(key)
    result = {**marks, **_from_earliest([*again, *(queues.keys() - marks.keys())], queues)}
    checked.update((key, result[key]) for key in unsure)
    return result


_AGAIN: Final = (
    "If files of the store are missing (`rmqstore verify` shows it), put them back. "
    "failOnDataLoss=false reads the queue again from its first message: messages that were read "
    "before and are still there then come twice."
)


def _from_earliest(keys: Iterable[QueueKey], queues: Queues) -> Offsets:
    firsts = {key: queues[key].queue.min_offset for key in keys}
    return starting_marks(firsts, queues)


def _holds(
    key: QueueKey,
    mark: Mark,
    chosen: ChosenQueue,
    before: Before | None,
    positions: PositionOptions,
) -> bool:
    """Return whether a stream can continue at a mark; if not, that is a loss.

    Args:
        before: what lies before the mark; None if the queue does not reach it.
    """
    queue = chosen.queue
    if before is None:
        lose(
            positions,
            f"The stream had read {key} up to {mark.next}, but the queue now ends at "
            f"{queue.max_offset}: it was cut, or deleted and recreated.",
            f"The stream continues at its first message, {queue.min_offset}.",
            _AGAIN,
        )
        return False
    if is_another(mark, before):
        lose(
            positions,
            f"The stream had read {key} up to {mark.next}, but the message before that offset (at "
            f"{mark.last_physical} in the log) has changed or is missing: the queue was cut, or "
            "deleted and recreated, or this is another store, or a copy that has diverged.",
            f"The stream continues at its first message, {queue.min_offset}.",
            _AGAIN,
        )
        return False
    if queue.min_offset > mark.next:
        lose(
            positions,
            f"{queue.min_offset - mark.next} messages of {key} have expired unread: the stream "
            f"had read up to {mark.next}, but the queue now begins at {queue.min_offset}.",
        )
        return False
    return True


def advanced(marks: Offsets, ends: Mapping[QueueKey, int], queues: Queues) -> Offsets:
    """Move marks to the end of a micro-batch.

    Args:
        marks: where it starts (`as_start`).
        ends: where it ends; queues that are not in it keep their mark.
    """
    moved = {key: end for key, end in ends.items() if end > marks[key].next}
    before = before_all(moved, queues)
    return {
        **marks,
        **{key: _mark(end, before[key], marks[key].begin) for key, end in moved.items()},
    }


def limited_ends(
    marks: Offsets, ends: Mapping[QueueKey, int], queues: Queues, limits: TriggerOptions
) -> dict[QueueKey, int]:
    """Divide a micro-batch's limits among the queues.

    Args:
        marks: where it starts.
        ends: how far each queue reaches.
    """
    keys = [key for key, end in ends.items() if end > marks[key].next]
    rows = [ends[key] - marks[key].next for key in keys]
    if limits.max_rows is not None:
        rows = share(rows, limits.max_rows)
    if limits.max_bytes is not None:
        rows = _within_bytes(keys, rows, marks, queues, limits.max_bytes)
    return {key: marks[key].next + count for key, count in zip(keys, rows, strict=True)}


def _within_bytes(
    keys: list[QueueKey], rows: list[int], marks: Offsets, queues: Queues, limit: int
) -> list[int]:
    sizes = []
    for key, count in zip(keys, rows, strict=True):
        start = marks[key].next
        wanted = QueueRange(key.topic, key.queue_id, start, start + count)
        sizes.append(queues[key].source.average_size(wanted))
    backlogs = [max(count, int(count * size)) for count, size in zip(rows, sizes, strict=True)]
    if sum(backlogs) <= limit:
        return rows
    return [
        _count_within(queues[key], marks[key].next, count, budget, size)
        for key, count, budget, size in zip(keys, rows, share(backlogs, limit), sizes, strict=True)
    ]


def _count_within(chosen: ChosenQueue, start: int, count: int, budget: int, size: float) -> int:
    """Return how many of the next messages fit into a number of bytes.

    They are counted by their exact sizes, or by the average if only messages themselves have them.
    """
    taken = 0
    while taken < count:
        step = min(count - taken, _MOST_ENTRIES, int(budget / max(size, 1.0)) + 16)
        sizes = chosen.source.sizes(chosen.queue, start + taken, start + taken + step)
        if sizes is None:
            return min(count, max(1, int(budget / max(size, 1.0))))
        fits = rows_within(sizes, budget) if taken == 0 else rows_within(sizes, budget, least=0)
        taken += fits
        if fits < step:
            break
        budget -= int(sizes.clip(min=0).sum(dtype="int64"))
    return taken


def share(backlogs: Sequence[int], limit: int) -> list[int]:
    """Divide a limit in proportion to the backlogs.

    Each queue with a backlog gets at least one, so that large queues do not starve small ones. With
    more such queues than the limit, the sum exceeds it. Otherwise the sum is the limit or, if less,
    the sum of the backlogs. The same input gives the same shares.

    Args:
        backlogs: the backlog of each queue, 0 or more.
        limit: 1 or more.

    Returns:
        The share of each queue, at most its backlog.
    """
    waiting = [number for number, backlog in enumerate(backlogs) if backlog]
    total = sum(backlogs)
    if total <= limit:
        return list(backlogs)
    shares = [min(1, backlog) for backlog in backlogs]
    spare, behind = limit - len(waiting), total - len(waiting)
    if spare <= 0:
        return shares
    for number in waiting:
        shares[number] += (backlogs[number] - 1) * spare // behind
    # The remainder of rounding goes to the queues that lost most by it.
    left = limit - sum(shares)
    for number in sorted(waiting, key=lambda n: (-((backlogs[n] - 1) * spare % behind), n))[:left]:
        shares[number] += 1
    return shares


def rows_within(sizes: npt.NDArray[np.int32], budget: int, least: int = 1) -> int:
    """Count the entries, from the first on, that fit into a number of bytes.

    Args:
        sizes: i4[n], n > 0, bytes of each entry's record.
        budget: bytes.
        least: the minimum result.
    """
    ends = np.cumsum(np.maximum(sizes, 0), dtype=np.int64)
    return max(least, int(np.searchsorted(ends, budget, side="right")))


def batch_ranges(
    start: Offsets, end: Offsets, queues: Queues, positions: PositionOptions
) -> dict[QueueKey, tuple[int, int]]:
    """Find the ranges that a micro-batch reads, also if it is planned again after a restart.

    If the batch was the first to read a queue, its end holds where the queue begins (see
    `offsets`). `start` applies only to the other queues; after a restart it can even be past the
    end.

    Raises:
        DataLossError: messages of the batch no longer exist, and `failOnDataLoss` is set.
    """
    begins = {key: _begin(key, mark, start) for key, mark in end.items()}
    begins = {key: begin for key, begin in begins.items() if begin < end[key].next}
    before = before_all(
        {
            key: end[key].next
            for key in begins
            if key in queues and end[key].next <= queues[key].queue.max_offset
        },
        queues,
    )
    ranges = {}
    for key, begin in begins.items():
        mark = end[key]
        chosen = queues.get(key)
        if chosen is None:
            lose(
                positions,
                f"Queue {key} is not there; offsets {begin} to {mark.next - 1} cannot be read.",
            )
            continue
        queue = chosen.queue
        if key not in before or is_another(mark, before[key]):
            lose(
                positions,
                f"Offsets {begin} to {mark.next - 1} of {key} hold other messages than before: "
                "the queue was cut, or deleted and recreated, or this is another store, or a copy "
                "that has diverged.",
            )
            continue
        if begin < queue.min_offset:
            gone = min(queue.min_offset, mark.next)
            lose(positions, f"{gone - begin} messages of {key}, from {begin} on, have expired.")
            begin = gone
        if begin < mark.next:
            ranges[key] = begin, mark.next
    return ranges


def _begin(key: QueueKey, mark: Mark, start: Offsets) -> int:
    if mark.begin is not None:
        return mark.begin
    if key not in start:
        raise RmqStoreError(
            f"The checkpoint has an end offset of {key}, but no start offset. Start the stream "
            "with another checkpointLocation and explicit startingOffsets."
        )
    return start[key].next
