"""Opens the files of a member, and refuses those that do not fit each other."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from rmqstore_spark.consensus.driver.disk.entry_log import EntryLog
from rmqstore_spark.consensus.driver.disk.recovery import recover
from rmqstore_spark.consensus.driver.disk.state_files import StateFiles
from rmqstore_spark.errors import CorruptStoreError, UnsupportedStoreError
from rmqstore_spark.files.directory import DLEDGER_PREFIX
from rmqstore_spark.files.durable import make_folder
from rmqstore_spark.layout.dledger import REPAIR

_WITHOUT_TERM: Final = f"Without its term, a member could vote twice. {REPAIR}"


class MemberFiles(NamedTuple):
    """The open files of a member; all that they have is on disk.

    Attributes:
        state: term, vote and commit index.
        log: its entries.
        terms: where terms begin: (index, term).
    """

    state: StateFiles
    log: EntryLog
    terms: list[tuple[int, int]]


def open_files(store: str, me: str, segment_size: int, begins_at: int) -> MemberFiles:
    """Open the files of a member, which are made if there are none.

    Args:
        store: the store directory.
        me: the id of the member.
        segment_size, begins_at: see `EntryLog`.

    Raises:
        UnsupportedStoreError: the store has the log of another member.
        CorruptStoreError: a file is damaged, or the entries are not those of the term.
        StoreWriteError: a file could not be written.
    """
    _require_own_log(store, me)
    folder = os.path.join(store, f"{DLEDGER_PREFIX}{me}")
    make_folder(folder)
    state = StateFiles(folder)
    log = EntryLog(folder, segment_size, begins_at)
    terms = recover(log, state.saved_commit, had_entries=state.has_entries)
    log.take_unflushed().flush()
    _check_term(folder, state, log.is_empty, terms[-1][1] if terms else 0)
    state.note_entries(there=not log.is_empty)
    return MemberFiles(state, log, terms)


def _check_term(folder: str, state: StateFiles, is_empty: bool, last_term: int) -> None:
    """Refuse entries without the term that they were stored in."""
    saved = state.saved
    if saved is None and not is_empty:
        raise CorruptStoreError(
            "there are entries, and no file currterm with the term of this member",
            file=folder,
            remedy=_WITHOUT_TERM,
        )
    if saved is not None and saved.term < last_term:
        raise CorruptStoreError(
            f"currTerm is {saved.term}, and an entry has term {last_term}",
            file=os.path.join(folder, "currterm"), remedy=_WITHOUT_TERM,
        )  # fmt: skip


def _require_own_log(store: str, me: str) -> None:
    """Refuse a store with the log of another member, or of a broker without a group."""
    others = [
        name
        for name in os.listdir(store)
        if name.startswith(DLEDGER_PREFIX) and name != f"{DLEDGER_PREFIX}{me}"
    ]
    if others:
        raise UnsupportedStoreError(
            f"{store} has the log of another member ({', '.join(sorted(others))}), and "
            f"dLegerSelfId is {me}. Give each member a store of its own."
        )
