"""What a leader appends: the entry with which its term begins, and what its engine proposes.

Until an entry of its own term is committed, a leader commits none of earlier terms. RocketMQ's
brokers take an entry for damage that is not a record. So the first one is a record, of a kind that
no broker puts into a queue or an index: a message that was rolled back.

What the engine proposes while a flush is under way waits for its end: it shares a push to each
peer, and the flushes here and there. If it is much, it need not wait: it fills a push.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from rmqstore_spark.consensus.actions import MemberRole
from rmqstore_spark.consensus.driver.disk.entry_log import EntryLog
from rmqstore_spark.consensus.member import GroupMember
from rmqstore_spark.consensus.messages import LedgerEntry
from rmqstore_spark.layout.constants import TERM_TOPIC, TRANSACTION_ROLLBACK_TYPE
from rmqstore_spark.layout.dledger import ENTRY_HEADER_SIZE, entry_position
from rmqstore_spark.layout.fields import PHYSICAL_OFFSET_AT, STORE_TIMESTAMP_AT
from rmqstore_spark.layout.record.encode import MessageFields, encode_messages

_STEP_BYTES: Final = 256 << 10
"""Bytes of records from which on they need not wait, and after which others have their turn."""
_HOST: Final = "127.0.0.1:0"
_LONG: Final = struct.Struct(">q")


def term_record(term: int, leader: str, now: int) -> bytes:
    """Return the record of a leader's first entry, without its place.

    Args:
        term: which begins.
        leader: who leads in it.
        now: milliseconds since 1970.
    """
    text = f"term {term} of {leader}".encode()
    fields = MessageFields(
        TERM_TOPIC.encode(), text, b"", _HOST, now, 0, 0, TRANSACTION_ROLLBACK_TYPE, 0
    )
    record = bytearray(encode_messages([fields], _HOST).data.tobytes())
    _LONG.pack_into(record, STORE_TIMESTAMP_AT, now)
    return bytes(record)


def placed(record: bytes, position: int) -> bytes:
    """Return a record that says at which position in the log it is."""
    return record[:PHYSICAL_OFFSET_AT] + _LONG.pack(position) + record[PHYSICAL_OFFSET_AT + 8 :]


class _Proposal(NamedTuple):
    term: int
    position: int
    records: Sequence[bytes]
    size: int


class Proposals:
    """Records that the engine proposes. Use it in the running event loop, but for `add`.

    Args:
        log: where they are appended.
        ready: is called in the event loop when there are some, to `take` them.

    Attributes:
        are_held: whether nothing is to be appended: another member is about to lead.
    """

    def __init__(self, log: EntryLog, ready: Callable[[], object]) -> None:
        self._log = log
        self._ready = ready
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Proposal] = deque()
        self._is_called = False
        self.are_held = False

    def add(self, term: int, position: int, records: Sequence[bytes]) -> None:
        """Have records appended, if the member still leads in a term then. In any thread.

        Args:
            term: the term.
            position: where the first entry begins, behind what was added before. Each record says
                where it is.
            records: the records.
        """
        self._waiting.append(_Proposal(term, position, records, sum(map(len, records))))
        if not self._is_called:
            self._is_called = True
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._ready)

    def take(self, member: GroupMember, *, is_flushing: bool) -> tuple[LedgerEntry, ...]:
        """Return the entries to append in this step; none if more may gather.

        Args:
            member: the member: its ledger ends where the log does.
            is_flushing: whether a flush is under way; call this again after it.
        """
        self._is_called = False
        if not self._waiting or self.are_held:
            return ()
        if is_flushing and sum(each.size for each in self._waiting) < _STEP_BYTES:
            return ()
        index, end = member.ledger.end, self._log.end
        entries: list[LedgerEntry] = []
        size = 0
        while self._waiting and size < _STEP_BYTES:
            proposal = self._waiting.popleft()
            if member.role is not MemberRole.LEADER or member.term != proposal.term:
                continue
            size += proposal.size
            first = len(entries)
            for record in proposal.records:
                entry_size, index = ENTRY_HEADER_SIZE + len(record), index + 1
                at = entry_position(end, entry_size, self._log.segment_size)
                entries.append(LedgerEntry(index, proposal.term, at, entry_size, record))
                end = at + entry_size
            assert entries[first].position == proposal.position, (
                f"records were placed at {proposal.position}, and the next entry begins at "
                f"{entries[first].position}"
            )
        if self._waiting and not self._is_called:
            self._is_called = True
            self._loop.call_soon(self._ready)
        return tuple(entries)
