"""What of a leader's push can be stored: entries that are records, and that have their places."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from rmqstore_spark.consensus.driver.disk.entry_log import EntryLog
from rmqstore_spark.consensus.driver.wire import Status
from rmqstore_spark.consensus.ledger import MemberLedger
from rmqstore_spark.consensus.messages import LedgerEntry, MemberCode, Push, PushType
from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.dledger import BLANK_SIZE, ENTRY_HEADER_SIZE

_OTHER_TERM: Final = -2
_TERMS_IN_A_MS: Final = 1 << 20
"""Far more than elections can take. By 2100, that is less than `MOST_TERM`."""


class RefusedPush(Exception):
    """A push that changes nothing. Its text says why; `status` is the answer."""

    def __init__(self, status: Status | MemberCode, why: str) -> None:
        self.status = status
        super().__init__(why)


def checked(push: Push, log: EntryLog, ledger: MemberLedger) -> Push:
    """Return a push with entries as the member has to see it.

    Args:
        push: as it came.
        log, ledger: of the member.

    Raises:
        RefusedPush: its entries cannot be stored.
    """
    entries = push.entries
    first = entries[0]
    if [entry.index for entry in entries] != [*range(first.index, first.index + len(entries))]:
        raise RefusedPush(MemberCode.INCONSISTENT_STATE, "its entries do not follow each other")
    if push.type is PushType.COMPARE:
        # Members of RocketMQ can write two entries with one index in one term.
        other = first._replace(term=_OTHER_TERM) if _differs(first, log, ledger) else first
        return push._replace(entries=(other,))
    known = max(ledger.end + 1 - first.index, 0)
    if any(_differs(entry, log, ledger) for entry in entries[:known]):
        raise RefusedPush(
            MemberCode.INCONSISTENT_STATE, "an entry of the same term is another one here"
        )
    new = entries[known:]
    if push.type is PushType.TRUNCATE and ledger.term_of(first.index) != first.term:
        new = entries  # the log begins again with it
        if first.position % log.segment_size + first.size + BLANK_SIZE > log.segment_size:
            raise RefusedPush(MemberCode.INCONSISTENT_STATE, _place(first))
        if log.begins_at not in (0, first.position):
            raise RefusedPush(MemberCode.INCONSISTENT_STATE, _begin(first, log))
    elif new and first.index <= ledger.end + 1 and not log.has_place_for(new):
        why = _begin(first, log) if log.is_empty and log.begins_at else _place(new[0])
        raise RefusedPush(MemberCode.INCONSISTENT_STATE, why)
    if new and not are_records(new):
        raise RefusedPush(MemberCode.INCONSISTENT_STATE, "an entry is not a record of its place")
    if new and not log.room.has(sum([entry.size for entry in new])):
        raise RefusedPush(Status.DISK_FULL, "the disk is full")
    return push


def why_no_term(term: int) -> str | None:
    """Return why no group can have reached a term; None if one can.

    The bound is the same for all members, but for their clocks, and moves on: one that is lied to
    still understands the others.
    """
    most = round(time.time() * 1000) * _TERMS_IN_A_MS
    if term <= most:
        return None
    return (
        f"its term {term} is more than a group can have reached by this machine's clock, {most}: "
        "it is not a true one, or a clock is wrong"
    )


def are_records(entries: Sequence[LedgerEntry]) -> bool:
    """Return whether the bodies of entries are sound records that say where they are."""
    places = [entry.position + ENTRY_HEADER_SIZE for entry in entries]
    sound = kernel.active.sound_records([entry.body for entry in entries], places)
    return bool(sound == len(entries))


def _differs(entry: LedgerEntry, log: EntryLog, ledger: MemberLedger) -> bool:
    """Return whether the entry of this index and term has other bytes here."""
    if ledger.term_of(entry.index) != entry.term:
        return False
    return log.read(entry.index, entry.index)[0] != entry


def _place(entry: LedgerEntry) -> str:
    return (
        f"entry {entry.index} at {entry.position} is not where this log would have it; all members "
        "need the same mappedFileSizeCommitLog"
    )


def _begin(entry: LedgerEntry, log: EntryLog) -> str:
    return (
        f"entry {entry.index} begins at {entry.position}, and the messages that this store had "
        f"before, in commitlog/, end at {log.begins_at}. If the entries behind it have expired "
        "there, move commitlog/ of this one away: it then joins without its old messages. "
        "Otherwise move its store away, and copy commitlog/ of that member into a new one"
    )
