"""Term, vote and commit index of a member, in texts that DLedger reads: `currterm`, `checkpoint`.

`currterm` has `currTerm` and `voteLeader`, which is empty if there is no vote. DLedger skips other
lines: ours are `isVoter=false`, while a member may not vote, and `hasEntries=true`, once entries of
it are on disk: who finds none later knows that they are lost. A text is replaced as a whole, and is
on disk then.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from typing import Final

from rmqstore_spark.consensus.actions import Save
from rmqstore_spark.consensus.messages import MOST_TERM
from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.durable import explained, replace_file, write_all
from rmqstore_spark.layout.dledger import REPAIR, encode_committed_index, parse_committed_index

_LINE: Final = re.compile(r"[ \t]*([a-zA-Z]+)[ \t]*[=:][ \t]*([^\r\n]*?)[ \t]*")
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")
_MOST: Final = 1 << 16


class StateFiles:
    """The texts of a member. One thread uses it, but for `save_committed` and `note_committed`.

    Args:
        folder: `dledger-{selfId}`.

    Attributes:
        saved_commit: index of the last entry that is known to be committed; -1 for none. It is on
            disk, or was found there.
        saved: term and vote, as they were saved last; None if there is no file.
        has_entries: whether that file says that there are entries.

    Raises:
        CorruptStoreError: a file does not have what it is for.
    """

    def __init__(self, folder: str) -> None:
        self._term = os.path.join(folder, "currterm")
        self._checkpoint = os.path.join(folder, "checkpoint")
        self.has_entries = False
        self.saved = self._read_term()
        self.saved_commit = self._read_committed()
        self._noted_commit = -2  # the first note writes the file, also without an entry
        self._descriptor = -1  # of the file with the commit index
        self._writing = threading.Lock()  # the file with the commit index

    def write_term(self, save: Save) -> None:
        """Save term and vote.

        Raises:
            StoreWriteError: they are not on disk.
        """
        lines = [f"voteLeader={save.vote or ''}", f"currTerm={save.term}"]
        if not save.is_voter:
            lines.append("isVoter=false")
        if self.has_entries:
            lines.append("hasEntries=true")
        replace_file(self._term, "".join(f"{line}\n" for line in lines).encode())
        self.saved = save

    def note_entries(self, *, there: bool) -> None:
        """Save whether there are entries, if that has changed; term and vote were saved before.

        Args:
            there: true once one is on disk, and false before the last one is removed.

        Raises:
            StoreWriteError: it is not on disk.
        """
        if there != self.has_entries and self.saved is not None:
            self.has_entries = there
            self.write_term(self.saved)

    def save_committed(self, known: Callable[[], tuple[int, int]]) -> None:
        """Save the commit index, and the index of the last entry, if it is higher than before.

        Args:
            known: returns them.

        Raises:
            StoreWriteError: they are not on disk.
        """
        with self._writing:
            committed, end = known()
            if committed <= self.saved_commit:
                return
            if self._noted_commit > committed:  # readers have seen that: it does not go back
                with explained(self._checkpoint, "flushed"):
                    os.fdatasync(self._descriptor)
                self.saved_commit = committed
            else:
                self._replace(committed, end)

    def note_committed(self, known: Callable[[], tuple[int, int]]) -> None:
        """Write the same for those who read the files; it need not be on disk. In any thread.

        Args:
            known: returns them.

        Raises:
            StoreWriteError: it could not be written.
        """
        with self._writing:
            committed, end = known()
            if committed <= self._noted_commit:
                return
            if self._descriptor < 0:
                self._replace(committed, end)
                return
            with explained(self._checkpoint, "written"):
                write_all(self._descriptor, encode_committed_index(committed, end), 0)
            self._noted_commit = committed

    def forget_committed(self) -> None:
        """Save that no entry is known to be committed.

        Raises:
            StoreWriteError: it is not on disk.
        """
        with self._writing:
            self._replace(-1, -1)

    def close(self) -> None:
        """Close the file with the commit index."""
        with self._writing:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def _replace(self, committed: int, end: int) -> None:
        replace_file(self._checkpoint, encode_committed_index(committed, end))
        self.saved_commit = self._noted_commit = committed
        with explained(self._checkpoint, "opened"):
            opened = os.open(self._checkpoint, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = opened

    def _read_term(self) -> Save | None:
        text = _read(self._term)
        if text is None:
            return None
        lines = filter(None, map(_LINE.fullmatch, text.splitlines()))
        found = {line[1]: line[2] for line in lines}
        term = found.get("currTerm", "")
        if not _NUMBER.fullmatch(term) or not 0 <= int(term) <= MOST_TERM:
            raise CorruptStoreError(
                "the file does not have a line currTerm=NUMBER", file=self._term,
                remedy=f"Without its term, a member could vote twice. {REPAIR}",
            )  # fmt: skip
        self.has_entries = found.get("hasEntries") == "true"
        is_voter = found.get("isVoter", "true") == "true"
        return Save(int(term), found.get("voteLeader") or None, is_voter)

    def _read_committed(self) -> int:
        text = _read(self._checkpoint)
        return -1 if text is None else parse_committed_index(text, file=self._checkpoint)


def _read(path: str) -> str | None:
    with explained(path, "read"):
        try:
            with open(path, "rb") as file:
                return file.read(_MOST).decode("utf-8", "replace")
        except FileNotFoundError:
            return None
