"""Saves the commit index of a member's log, and removes segments whose time is over."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from rmqstore_spark.consensus.driver.disk.entry_log import EntryLog
from rmqstore_spark.consensus.driver.disk.segmented import Unflushed
from rmqstore_spark.consensus.driver.disk.state_files import StateFiles
from rmqstore_spark.consensus.member import GroupMember

_log = logging.getLogger(__name__)

_INTERVAL_S: Final = 3.0


class LogUpkeep:
    """Keeps the files of a log as the member needs them. One thread uses it, but for `note`.

    Args:
        member: knows what is committed.
        log: its entries.
        state: the file with the commit index.
        reserved_seconds: a segment that was written longer ago is removed, if all of it is
            committed and others follow.
    """

    def __init__(
        self, member: GroupMember, log: EntryLog, state: StateFiles, reserved_seconds: float
    ) -> None:
        self._member = member
        self._log = log
        self._state = state
        self._reserved = reserved_seconds

    async def run(self) -> None:
        """Do both, again and again.

        Raises:
            StoreWriteError: a file could not be written, flushed or removed.
        """
        while True:
            await asyncio.sleep(_INTERVAL_S)
            committed, index = self._committed, self._log.take_unflushed_index()
            await asyncio.to_thread(self._save, committed, index)
            self._expire()

    def _save(self, committed: int, index: Unflushed) -> None:
        index.flush()  # readers of the files look the last entry up
        # It can be less than it was: the log was begun again.
        self._state.save_committed(lambda: (min(committed, self._committed), self._log.last))

    def save_all(self) -> None:
        """Flush what was written, and save the commit index.

        Raises:
            StoreWriteError: a file could not be flushed or written.
        """
        self._log.take_unflushed().flush()
        self._log.take_unflushed_index().flush()
        self._state.save_committed(self._known)

    def note(self) -> None:
        """Let readers of the files see all that is committed now. In any thread.

        Raises:
            StoreWriteError: the file with the commit index could not be written.
        """
        self._state.note_committed(self._known)

    def _expire(self) -> None:
        """Remove the first segment, if its time is over."""
        begin = self._log.second_segment()
        ledger = self._member.ledger
        if begin is None or begin > min(self._state.saved_commit, ledger.flushed):
            return
        if time.time() - self._log.oldest_written() > self._reserved:
            _log.info("The entries %d to %d have expired.", ledger.begin, begin - 1)
            self._remove_to(begin)

    def remove_first(self, start: int) -> None:
        """Remove the first segment, whatever its time; all of it is committed.

        Args:
            start: where it begins.

        Raises:
            StoreWriteError: it could not be removed.
        """
        begin = self._log.second_segment()
        assert self._log.data.starts[:1] == [start], f"the log does not begin at {start}"
        assert begin is not None, "the last segment does not expire"
        self._remove_to(begin)

    def _remove_to(self, begin: int) -> None:
        self._member.ledger.expire(begin)
        self._log.expire(begin)

    def _known(self) -> tuple[int, int]:
        return self._committed, self._log.last

    @property
    def _committed(self) -> int:
        return min(self._member.commit, self._member.ledger.flushed)
