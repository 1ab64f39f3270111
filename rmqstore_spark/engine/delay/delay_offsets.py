"""How far each delay level is delivered, in `config/delayOffset.json` as a broker keeps it.

The file also has the physical offset up to which copies in the log are counted (`logOffset`, which
a broker ignores, and drops when it writes the file). After a crash, those behind it count too
(`recall`).
(Upstream: ScheduleMessageService, DelayOffsetSerializeWrapper.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rmqstore_spark.engine.tables.config_file import ConfigFile

__all__ = ["DelayOffsets"]

_TABLE: Final = "offsetTable"
_LOG_OFFSET: Final = "logOffset"


class DelayOffsets:
    """The file with the progress of delivery. Used by one thread.

    Args:
        store: the store directory.

    Attributes:
        exists: whether there is such a file.
        offsets: the offset of the next message to deliver, by level.
        log_offset: the copies before this physical offset are counted in `offsets`; None if the
            file does not say so, as a broker's.

    Raises:
        CorruptStoreError: neither the file nor its `.bak` is JSON.
    """

    def __init__(self, store: str) -> None:
        self._file = ConfigFile(store, "delayOffset")
        value = self._file.value
        self.exists = bool(value)
        self.offsets = _offsets(value.get(_TABLE))
        log_offset = value.get(_LOG_OFFSET)
        self.log_offset = log_offset if type(log_offset) is int and log_offset >= 0 else None
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
        if log_offset == self.log_offset and all(
            self.offsets.get(level) == offset for level, offset in offsets.items()
        ):
            return
        table = dict(sorted({**self.offsets, **offsets}.items()))
        self._file.replace({**self._others, _LOG_OFFSET: log_offset, _TABLE: table})
        self.offsets, self.log_offset, self.exists = table, log_offset, True


def _offsets(table: Any) -> dict[int, int]:
    found = {}
    for level, offset in table.items() if isinstance(table, dict) else ():
        text = str(level)
        is_level = text.isascii() and text.isdecimal() and len(text) <= 9
        if is_level and type(offset) is int and offset >= 0:
            found[int(text)] = offset
    return found
