"""How far each delay level is delivered, in `config/delayOffset.json` as a broker keeps it.

The file also has the physical offset up to which copies in the log are counted (`logOffset`, which
a broker ignores, and drops when it writes the file). After a crash, those behind it count too
(`copies`). A level whose offset is missing, or cannot be, has none here: the log alone tells its
progress.
(Upstream: ScheduleMessageService, DelayOffsetSerializeWrapper.)
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any, Final, Protocol

from rmqstore_spark.engine.dispatch.queues import ConsumeQueues
from rmqstore_spark.engine.tables.config_file import ConfigFile
from rmqstore_spark.errors import StoreAccessError
from rmqstore_spark.files.configfiles import impossible_delay
from rmqstore_spark.layout.constants import SCHEDULE_TOPIC

_log = logging.getLogger(__name__)

_TABLE: Final = "offsetTable"
_LOG_OFFSET: Final = "logOffset"


class LevelProgress(Protocol):
    """How far each level is delivered."""

    @property
    def offsets(self) -> Mapping[int, int]:
        """The offset of the next message to deliver, by level."""
        ...

    @property
    def log_offset(self) -> int | None:
        """The copies before this physical offset are counted; None if that is not known."""
        ...


class DelayOffsets:
    """The file with the progress of delivery. Used by one thread.

    Args:
        store: the store directory.

    Attributes:
        offsets: the offset of the next message to deliver, by level.
        log_offset: the copies before this physical offset are counted in `offsets`; None if the
            file does not say so, as a broker's.

    Raises:
        CorruptStoreError: neither the file nor its `.bak` is JSON of the right shape.
    """

    def __init__(self, store: str) -> None:
        self._file = ConfigFile(store, "delayOffset")
        value = self._file.value
        self._is_whole = True
        self.log_offset: int | None = None
        self.offsets: dict[int, int] = {}
        self._set(value.get(_TABLE, {}), value.get(_LOG_OFFSET))
        self._others = {k: v for k, v in value.items() if k not in (_TABLE, _LOG_OFFSET)}

    def save(self, offsets: Mapping[int, int], log_offset: int) -> None:
        """Write the file; afterwards it is on disk.

        Args:
            offsets: the offset of the next message to deliver, by level. Levels that are not
                given stay as they are: the configuration may name them again.
            log_offset: the copies before it are counted, and on disk.

        Raises:
            StoreWriteError: it could not be written.
        """
        is_same = all(self.offsets.get(level) == offset for level, offset in offsets.items())
        if is_same and log_offset == self.log_offset and self._is_whole:
            return
        table = dict(sorted({**self.offsets, **offsets}.items()))
        self._file.replace({**self._others, _LOG_OFFSET: log_offset, _TABLE: table})
        self.offsets, self.log_offset, self._is_whole = table, log_offset, True

    def check(self, ends: Mapping[int, int], log_end: int) -> None:
        """Leave out progress that the store cannot have made; it is logged.

        Args:
            ends: the offset behind the last message of each level.
            log_end: where the log ends.
        """
        if self.log_offset is not None and self.log_offset > log_end:
            self._doubt_all(f"is {self.log_offset}, behind the end of the log at {log_end}")
        for level, offset in list(self.offsets.items()):
            if offset > ends.get(level, offset):
                self._leave_out(
                    f"level {level} has {offset}, behind its last message at {ends[level]}", [level]
                )

    def _set(self, table: Mapping[Any, Any], log_offset: Any) -> None:
        for level, offset in table.items():
            fault = impossible_delay(level, offset)
            if fault:
                self._leave_out(fault, [])
            else:
                self.offsets[int(level)] = offset
        if type(log_offset) is int and log_offset >= 0:
            self.log_offset = log_offset
        elif log_offset is not None:
            self._doubt_all(f"is {log_offset!r:.100}, which is not an offset")

    def _doubt_all(self, fault: str) -> None:
        """Leave out all progress: it is not known which copies it counts."""
        self.log_offset = None
        self._leave_out(f"{_LOG_OFFSET} {fault}", self.offsets)

    def _leave_out(self, fault: str, levels: Collection[int]) -> None:
        self._is_whole = False
        _log.warning(
            "%s: %s. That counts as missing: what the log has copies of was delivered, and the "
            "rest is delivered.", self._file.path, fault,
        )  # fmt: skip
        for level in list(levels):
            del self.offsets[level]


def first_undelivered(
    queues: ConsumeQueues, levels: int, offsets: Mapping[int, int]
) -> dict[int, int]:
    """Return the physical offset of the first message that is not delivered, by level.

    Args:
        queues: the store's queues.
        levels: how many delay levels there are.
        offsets: the offset of the next message to deliver, by level.

    Returns:
        The levels of which a message waits.

    Raises:
        StoreAccessError: an entry cannot be read: it expires just now.
    """
    places = dict[int, int]()
    for level in range(1, levels + 1):
        least = queues.min_offset(SCHEDULE_TOPIC, level - 1)
        at, end = max(offsets.get(level, 0), least), queues.max_offset(SCHEDULE_TOPIC, level - 1)
        if at > end:  # no progress that the store can have made: it tells nothing
            at = least
        if at < end:
            entry = queues.read(SCHEDULE_TOPIC, level - 1, at, 1)
            if not len(entry):
                raise StoreAccessError(
                    f"The entry {at} of {SCHEDULE_TOPIC}/{level - 1} cannot be read: its file has "
                    "just expired, or is missing."
                )
            places[level] = int(entry["physicalOffset"][0])
    return places


def oldest_undelivered(
    queues: ConsumeQueues, levels: int, offsets: Mapping[int, int]
) -> int | None:
    """Return the physical offset of the oldest message that `first_undelivered` returns, if any."""
    return min(first_undelivered(queues, levels, offsets).values(), default=None)
