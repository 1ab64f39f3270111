"""Compares where the log ends with how far it once reached, as the rest of the store tells.

These witnesses stop the opening if they lie past the end, whether the store was closed cleanly or
killed, because no crash explains that:

- The flush mark: the log was on disk up to there.
- A queue's last entry, or the last key of an index file, that names a record past the end of the
  last file that is not empty, at the length of a whole segment: a segment has this length, and is
  on disk by its name, before a record is written into it. A recovery that removes such files notes
  that first (`rmqstore/reached`).
- After a clean stop, any queue entry past the end: everything was flushed before.
- A checkpoint whose physicMsgTimestamp is later than the newest record (`log_end` compares them),
  or any in a store whose log has no file.

Other queue entries that name a record past the end can be what a power cut left: they may reach the
disk before the record does. The log then ends there without being told to, and says how much has
gone. See docs/format.md, "Where the log may end".
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Final, NamedTuple

from rmqstore_spark.engine.recovery.log_end import LogEnd
from rmqstore_spark.engine.recovery.log_files import LogFolder
from rmqstore_spark.engine.recovery.queue_check import entries_past, has_entries
from rmqstore_spark.engine.recovery.queue_survey import QueueSurvey
from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.directory import StoreDirectory
from rmqstore_spark.layout.checkpoint import Checkpoint, FlushMark
from rmqstore_spark.layout.index.format import HEADER_SIZE, IndexHeader
from rmqstore_spark.layout.index.geometry import infer_slots
from rmqstore_spark.reader.log.commitlog import CommitLog

_TOPICS_NAMED: Final = 5


class _Witness(NamedTuple):
    """Something that shows how far the log once reached.

    Attributes:
        text: what it says, as the second half of a sentence.
        end: physical offset up to which the log reached; 0 if it only tells that there was a log.
    """

    text: str
    end: int


@dataclass(frozen=True)
class Lost:
    """What the log held past its end.

    Attributes:
        start: physical offset where the log ends.
        end: physical offset up to which it is known to have reached; `start` if that is unknown.
        entries: entries of queues that name records past the end.
        topics: how many of them each topic has.
        after: storeTimestamp of the newest record that is left, in milliseconds; 0 if unknown. What
            was lost was stored then or later.
        until: storeTimestamp of a record that was lost, the latest that is known; 0 if none is.
    """

    start: int
    end: int
    entries: int
    topics: Mapping[str, int]
    after: int
    until: int

    def __str__(self) -> str:
        parts = []
        if self.entries:
            named = sorted(self.topics.items(), key=lambda item: (-item[1], item[0]))
            shown = [f"{topic}: {count:,}" for topic, count in named[:_TOPICS_NAMED]]
            if len(named) > _TOPICS_NAMED:
                shown.append(f"{len(named) - _TOPICS_NAMED:,} other topics")
            parts.append(f"{self.entries:,} queue entries of messages ({', '.join(shown)})")
        else:
            parts.append("messages that no queue names any more")
        if self.end > self.start:
            parts.append(f"{self.end - self.start:,} bytes up to physical offset {self.end}")
        if self.after:
            parts.append(f"stored after {_time(self.after)}")
        if self.until > self.after:
            parts.append(f"until {_time(self.until)} or later")
        return ", ".join(parts)


@dataclass(frozen=True)
class Reach:
    """How far the log of a store once reached, as far as anything beside it tells.

    Attributes:
        directory: the store.
        files: the files of its log.
        survey: the survey of its queues.
        mark: its flush mark; None if it has none.
        vouched: its checkpoint.
        ends: where the record of each queue's last entry ends.
        noted: the mark of a recovery that was interrupted when it had removed segments, and not yet
            what queues and index have of them; None if there was none.
    """

    directory: StoreDirectory
    files: LogFolder
    survey: QueueSurvey
    mark: FlushMark | None
    vouched: Checkpoint
    ends: Mapping[tuple[str, int], int]
    noted: FlushMark | None = None

    @property
    def files_end(self) -> int:
        """Physical offset up to which the files of the log reach, or did before a recovery."""
        return max(self.files.end, self.noted.offset if self.noted is not None else 0)


def find_lost(reach: Reach, log: CommitLog, end: LogEnd, *, clean: bool) -> tuple[Lost | None, str]:
    """Find out what the log held past its end.

    Args:
        reach: what is known of the log.
        log: the log.
        end: where it ends.
        clean: whether the store was closed cleanly.

    Returns:
        What was lost, None if nothing is known to be; and what shows that no crash explains it, ""
        if one does.
    """
    found = list(_certain(reach, end, clean=clean, has_log=bool(len(log))))
    past = {route: at for route, at in reach.ends.items() if at > end.offset}
    if not (found or past or end.damage):
        return None, ""
    entries = entries_past(reach.directory, log, reach.survey, past, end.offset)
    topics: Counter[str] = Counter()
    for (topic, _), count in entries.items():
        topics[topic] += count
    reached = max([end.offset, *past.values(), *(witness.end for witness in found)])
    until = max(reach.vouched.physic_msg_timestamp, _indexed_until(reach.directory, end.offset))
    lost = Lost(end.offset, reached, topics.total(), dict(topics), end.newest, until)
    return lost, found[0].text if found else ""


def reach_error(reach: Reach, end: LogEnd, lost: Lost, witness: str) -> CorruptStoreError:
    """Return the error for a log that has lost what was flushed or dispatched.

    Args:
        reach: what is known of the log.
        end: where it ends.
        lost: what it held past the end.
        witness: what shows that, as `find_lost` returns it; "" if the checkpoint does.
    """
    file, at = reach.files.place(end.offset)
    state = reach.files.state(file) or end.cause or "it ends"
    cause = f"the log is damaged: {state} (physical offset {end.offset}), "
    cause += f"but {witness}" if witness else "below what was known to be on disk"
    return CorruptStoreError(
        cause,
        file=file,
        offset=at,
        remedy="Restore the file, and those after it, from a copy of the store or from a slave. "
        "Without them, copy the store, then run `rmqstore recover --cut`: it ends the log there, "
        f"and keeps what follows in rmqstore/cut/ of the store. It gives up {lost}.",
    )


def _certain(reach: Reach, end: LogEnd, *, clean: bool, has_log: bool) -> list[_Witness]:
    """Return the witnesses past the end of the log that no crash explains."""
    found = []
    if reach.mark is not None and reach.mark.offset > end.offset:
        text = f"it was flushed up to physical offset {reach.mark.offset} (rmqstore/flushed)"
        found.append(_Witness(text, reach.mark.offset))
    limit = end.offset if clean else reach.files_end
    for (topic, queue_id), at in reach.ends.items():
        if at > limit:
            text = f"queue {topic}/{queue_id} names a record that ends at physical offset {at}"
            found.append(_Witness(text, at))
    found += _index_witness(reach.directory, limit)
    if not has_log and not found:
        if has_entries(reach.directory, CommitLog(reach.directory.commit_log())):
            found.append(_Witness("there are queues with entries", 0))
        elif reach.vouched.physic_msg_timestamp > 0:
            time = _time(reach.vouched.physic_msg_timestamp)
            text = f"the checkpoint knows of messages up to {time}"
            found.append(_Witness(text, 0))
    found.sort(key=lambda witness: -witness.end)
    return found


def _index_witness(directory: StoreDirectory, limit: int) -> list[_Witness]:
    """Return the newest index file if its last key is of a record at or past an offset.

    Header and last entry must agree on that.
    """
    for info in reversed(directory.index_files()[0]):
        path = os.path.join(directory.index_folder, info.name)
        header = _index_header(directory, path)
        if header is None or header.index_count <= 1:
            continue
        if header.end_phy_offset < limit:
            return []
        if infer_slots(info.size, partial(directory.files.read, path)) is None:
            continue
        at = header.end_phy_offset
        text = f"the index file {info.name} has a key of a record at physical offset {at}"
        return [_Witness(text, at)]
    return []


def _indexed_until(directory: StoreDirectory, end: int) -> int:
    """Return the latest storeTimestamp that the index knows of records past the log's end."""
    found = 0
    for info in directory.index_files()[0]:
        header = _index_header(directory, os.path.join(directory.index_folder, info.name))
        if header is not None and header.index_count > 1 and header.end_phy_offset >= end:
            found = max(found, header.end_timestamp)
    return found


def _index_header(directory: StoreDirectory, path: str) -> IndexHeader | None:
    try:
        return IndexHeader.decode(directory.files.read(path, 0, HEADER_SIZE), file=path)
    except (CorruptStoreError, OSError):
        return None


def _time(millis: int) -> str:
    try:
        moment = datetime.fromtimestamp(millis / 1000, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return f"{millis} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
