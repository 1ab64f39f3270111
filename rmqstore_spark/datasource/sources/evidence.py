"""What makes one copy of a store's log readable in place of another.

A follower's log is a prefix of its master's, byte for byte, at the same physical offsets. So a copy
that holds the last record that was planned, and holds the same bytes there, holds everything that
was planned. The queues are compared at their ends as well: they can be behind their log, and a
follower learns later, or never, that a topic was deleted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from rmqstore_spark.datasource.offsets import Mark
from rmqstore_spark.errors import (
    CorruptStoreError,
    ReplicaError,
    SegmentExpiredError,
    TopicNotFoundError,
)
from rmqstore_spark.reader.before import look_before
from rmqstore_spark.reader.options import QueueRange, QueueSplit, ScanSplit, Split

if TYPE_CHECKING:
    from rmqstore_spark.reader.queue import Queue
    from rmqstore_spark.reader.store import Store

_UNKNOWN: Final = -1


@dataclass(frozen=True)
class Evidence:
    """What a copy of a store must hold.

    Args:
        physical: where the last record that is read lies in the log; -1 if nothing is read.
        size: its bytes.
        digest: SHA-256 of these bytes.
        queue: topic and queueId of the queue that names it.
        ends: the end of each queue, by topic and queueId.
    """

    physical: int
    size: int
    digest: bytes
    queue: tuple[str, int]
    ends: Mapping[tuple[str, int], Mark]

    @classmethod
    def of(cls, store: Store, groups: Iterable[Sequence[Split]]) -> Evidence:
        """Collect it from the store that a read of some groups of splits is planned on."""
        ends: dict[tuple[str, int], Mark] = {}
        queue = ("", 0)
        last = size = _UNKNOWN
        for wanted in {one for group in groups for split in group for one in _ranges_of(split)}:
            if not wanted.count:
                continue
            (entry,) = store.queue(wanted.topic, wanted.queue_id).entries(
                wanted.end - 1, wanted.end
            )
            physical = int(entry["physicalOffset"])
            known = ends.get((wanted.topic, wanted.queue_id))
            if known is not None and known.next >= wanted.end:
                continue
            ends[wanted.topic, wanted.queue_id] = Mark(wanted.end, physical)
            if physical > last:
                last, size = physical, int(entry["size"])
                queue = (wanted.topic, wanted.queue_id)
        return cls(last, size, _digest(store, last, size) if last >= 0 else b"", queue, ends)

    def about(self, splits: Iterable[Split]) -> Evidence:
        """Return what is needed to check some of the splits."""
        keys = {(one.topic, one.queue_id) for split in splits for one in _ranges_of(split)}
        keys.add(self.queue)
        return replace(self, ends={key: self.ends[key] for key in keys if key in self.ends})

    def check(self, store: Store, splits: Iterable[Split], *, whole: bool = True) -> None:
        """Check that a copy holds some splits, and is not a fork.

        Args:
            whole: whether messages that have expired there are missed.

        Raises:
            ReplicaError: it does not hold them, or not yet, or holds others.
        """
        for split in splits:
            for wanted in _ranges_of(split):
                key = (wanted.topic, wanted.queue_id)
                queue = held_queue(store, *key, self.ends.get(key, Mark(wanted.end)))
                if whole and isinstance(split, QueueSplit) and queue.min_offset > wanted.start:
                    raise _expired(store, f"offset {wanted.start} of {wanted.topic}/{key[1]}")
            if whole and not isinstance(split, QueueSplit) and store.min_offset > split.start:
                raise _expired(store, f"physical offset {split.start}")
        if self.physical < 0:
            return
        held_queue(store, *self.queue, self.ends[self.queue])  # else it is behind, not a fork
        if self.physical < store.min_offset:
            return
        if _digest(store, self.physical, self.size) != self.digest:
            raise ReplicaError(
                f"{store.path} holds another record at physical offset {self.physical}: its log "
                "has diverged. Find out which log is right, and leave the other one out of the "
                "query."
            )


def _ranges_of(split: Split) -> tuple[QueueRange, ...]:
    """Return the queue ranges that a split reads from."""
    if isinstance(split, ScanSplit):
        return ()
    return (split.range,) if isinstance(split, QueueSplit) else split.ranges


def _expired(store: Store, what: str) -> ReplicaError:
    return ReplicaError(
        f"{store.path} does not have {what}: it has expired there, or the copy began later."
    )


def held_queue(store: Store, topic: str, queue_id: int, wanted: Mark) -> Queue:
    """Return a queue of a copy that reaches as far as that of the original.

    Raises:
        ReplicaError: it does not, or it is another queue of the same name.
    """
    name = f"{topic}/{queue_id}"
    try:
        queue = store.queue(topic, queue_id)
    except TopicNotFoundError:
        raise ReplicaError(f"{store.path} does not have queue {name} yet.", can_pass=True) from None
    if queue.max_offset < wanted.next:
        raise ReplicaError(
            f"{store.path} is behind: {name} ends at {queue.max_offset} there, and "
            f"{wanted.next} is needed.",
            can_pass=True,
        )
    if wanted.last_physical == _UNKNOWN or wanted.next <= queue.first_slot:
        return queue
    try:
        physical = queue.physical_offset(wanted.next - 1)
    except SegmentExpiredError:
        return queue
    except CorruptStoreError as error:
        raise ReplicaError(str(error)) from error
    if physical != wanted.last_physical:
        raise ReplicaError(
            f"{store.path} holds another message at {name} offset {wanted.next - 1}: at physical "
            f"offset {physical} instead of {wanted.last_physical}. The queue was recreated, or the "
            "log has diverged."
        )
    if wanted.fingerprint:
        (found,) = look_before(store.log, [(queue, wanted.next)])
        if found.fingerprint not in ("", wanted.fingerprint):
            raise ReplicaError(
                f"{store.path} holds another message at {name} offset {wanted.next - 1}, physical "
                f"offset {physical}: its log has diverged, or it is another store."
            )
    return queue


def _digest(store: Store, physical: int, size: int) -> bytes:
    return hashlib.sha256(store.log.read(physical, size)).digest()
