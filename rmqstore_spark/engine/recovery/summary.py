"""What recovery found and did, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rmqstore_spark.base.printable import camel_case
from rmqstore_spark.engine.log.cut import CutRange
from rmqstore_spark.engine.recovery.log_reach import Lost
from rmqstore_spark.engine.recovery.unpublished import Unpublished


@dataclass(frozen=True)
class Recovery:
    """The outcome of a recovery.

    Attributes:
        clean: whether the store had been closed cleanly.
        log_begin: physical offset of the log's first byte.
        log_end: physical offset one past its last.
        walked_bytes: bytes of the log that were walked, with the CRC of each body.
        cause: what ended the log; "" if its last file is full.
        cuts: what was cut off, and where it is saved.
        unpublished: the block of a commit that was killed, which was removed; None if there was
            none.
        lost: what is known of messages that the log held past its end; None if nothing is.
        dropped_entries: queue entries that named records past the log's end.
        redispatched: queue entries that were missing or wrong, and were written.
        rebuilt_queues: (topic, queueId) of queues that were missing.
        topics_without_queues: topics of records whose names cannot be folders.
        removed_index_files: names of index files that were invalid, or to be rebuilt.
        made_index_files: names of new index files.
        indexed_keys: keys that the index lacked.
        seconds: duration of the recovery.
    """

    clean: bool
    log_begin: int
    log_end: int
    walked_bytes: int
    cause: str = ""
    cuts: tuple[CutRange, ...] = ()
    unpublished: Unpublished | None = None
    lost: Lost | None = None
    dropped_entries: int = 0
    redispatched: int = 0
    rebuilt_queues: tuple[tuple[str, int], ...] = ()
    topics_without_queues: tuple[str, ...] = ()
    removed_index_files: tuple[str, ...] = ()
    made_index_files: tuple[str, ...] = ()
    indexed_keys: int = 0
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON values, with names as in other commands."""
        return {camel_case(name): value for name, value in asdict(self).items()}

    def lines(self) -> Iterator[str]:
        """Yield the outcome for people, one fact a line. What did not happen is left out."""
        how = "closed cleanly" if self.clean else "not closed cleanly"
        yield (
            f"The store was {how}; its log goes from {self.log_begin} to {self.log_end} "
            f"({self.walked_bytes:,} bytes walked, {self.seconds:.1f} s)."
        )
        for cut in self.cuts:
            yield f"Cut off: {cut.size:,} bytes at {cut.start} ({self.cause}), kept in {cut.kept}."
        if self.unpublished is not None:
            head, end = self.unpublished
            yield f"Removed: a Spark batch from {head} to {end} that had not been committed."
        if self.lost is not None:
            yield f"Given up: {self.lost}."
        if self.dropped_entries:
            yield (
                f"{self.dropped_entries:,} queue entries pointed past the log's end and were "
                "removed."
            )
        if self.redispatched:
            yield f"{self.redispatched:,} queue entries were missing or wrong and were written."
        if self.rebuilt_queues:
            names = [f"{topic}/{queue_id}" for topic, queue_id in self.rebuilt_queues]
            yield f"Queues rebuilt from the log: {', '.join(names)}."
        if self.topics_without_queues:
            names = [ascii(topic) for topic in self.topics_without_queues]
            yield f"Topics whose names cannot be folders have no queues: {', '.join(names)}."
        if self.removed_index_files:
            yield f"Removed index files: {', '.join(self.removed_index_files)}."
        if self.indexed_keys:
            yield (
                f"{self.indexed_keys:,} keys were indexed again"
                + (f" ({', '.join(self.made_index_files)})." if self.made_index_files else ".")
            )
