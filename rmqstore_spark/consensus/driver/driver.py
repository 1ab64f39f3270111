"""Carries out what a member decides: files, requests, answers and time.

All steps of the member are in one event loop. Writes are done there, and a thread flushes them,
many at a time. An error of the disk ends the driver: no entry is acknowledged after it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from rmqstore_spark.consensus.actions import (
    Action,
    BeginRefused,
    CommittedUpTo,
    Cut,
    CutRefused,
    MemberRole,
    Respond,
    Restart,
    RoleChanged,
    Save,
    SendRequest,
    Stop,
    Write,
)
from rmqstore_spark.consensus.driver.disk.flush_thread import FlushThread
from rmqstore_spark.consensus.driver.disk.opening import open_files
from rmqstore_spark.consensus.driver.group import MemberGroup
from rmqstore_spark.consensus.driver.peers import Peers
from rmqstore_spark.consensus.driver.proposals import Proposals, placed, term_record
from rmqstore_spark.consensus.driver.protection import MemberProtection
from rmqstore_spark.consensus.driver.upkeep import LogUpkeep
from rmqstore_spark.consensus.driver.wire import DLedgerRequest
from rmqstore_spark.consensus.ledger import MemberLedger
from rmqstore_spark.consensus.member import GroupMember
from rmqstore_spark.consensus.messages import Answer, LedgerEntry, Push, PushType, Request
from rmqstore_spark.consensus.timing import Timing
from rmqstore_spark.errors import CorruptStoreError, RmqStoreError
from rmqstore_spark.layout.dledger import ENTRY_HEADER_SIZE
from rmqstore_spark.remoting.peerlog import PeerLog

_log = logging.getLogger(__name__)

_PUSH_BYTES: Final = 256 << 10
"""Most bytes of entries in a push, but for a longer one alone."""


class MemberWatcher(Protocol):
    """Is told what a member decides, in its thread; it must not wait."""

    def committed(self, begin: int, end: int) -> None:
        """Take note of which part of the log is committed: positions of its begin and its end."""
        ...

    def role_changed(self, change: RoleChanged, end: int) -> None:
        """Take note of another role, term or leader.

        Args:
            change: the role.
            end: position behind the last entry; a leader's is the one with which its term begins.
        """
        ...

    def begins_again(self) -> None:
        """Take note that the log loses its entries now; it begins with a later one."""
        ...


class Driver:
    """A member that runs. Use it in the thread of a running event loop.

    Args:
        group: the group, and who of it this is.
        store: the store directory.
        segment_size: bytes of a segment, the same for all members.
        reserved_seconds: see `LogUpkeep`.
        answer: sends the answer to a request that came with a token.
        timing: how long it waits.
        watcher: is told what it decides.
        protection: with which it calls the others.
        begins_at: where its log begins, behind an older one of the store; see `EntryLog`.

    Attributes:
        member: what it decides with.
        log: its entries.
        upkeep: saves its commit index, and removes segments.
        timing: how long it waits.
        failed: is done, with the error, when it cannot continue.

    Raises:
        CorruptStoreError: the files are damaged, or have entries and no term.
        UnsupportedStoreError: the store has the log of another member.
    """

    def __init__(
        self,
        group: MemberGroup,
        store: str,
        segment_size: int,
        reserved_seconds: float,
        *,
        answer: Callable[[object, Answer], None],
        timing: Timing | None = None,
        watcher: MemberWatcher | None = None,
        protection: MemberProtection | None = None,
        begins_at: int = 0,
    ) -> None:
        self.group = group
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self.timing = timing or Timing()
        self._answer = answer
        self._watcher = watcher
        self._state, self.log, terms = open_files(store, group.me, segment_size, begins_at)
        saved = self._state.saved
        self._peers = Peers(group, self, protection or MemberProtection())
        self._flusher = FlushThread(self._end_flush)
        self._is_flushing = False
        self._changed = self._flushed = 0  # numbers of changes of the ledger
        self._waiting: dict[int, asyncio.Future[bool]] = {}  # appends, by index
        self._proposals = Proposals(self.log, self._append_proposed)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ends = 0  # when
        self._is_acting = False
        self._peerlog = PeerLog(_log)
        self._unwritten: list[LedgerEntry] = []  # appended in this step
        self._newest: tuple[LedgerEntry, ...] = ()  # written last
        self._may_vote = saved is not None and saved.is_voter
        self.member = GroupMember(
            group.me, group.ids, saved, MemberLedger(self.log.begin, self.log.last, terms),
            committed=self._state.saved_commit, now=self._now(), chance=random.random,
            timing=self.timing, within=self._within,
        )  # fmt: skip
        self.upkeep = LogUpkeep(self.member, self.log, self._state, reserved_seconds)
        self._keeping_up = self._loop.create_task(self._keep_up())
        self.act()

    # ---- what comes from outside ---------------------------------------------------------------

    def receive(self, token: object, request: Request) -> None:
        """Take a request of a peer, whose entries are whole and have their places."""
        self._step(lambda now: self.member.receive(token, request, now))

    def answered(self, number: int, answer: Answer) -> None:
        """Take a peer's answer."""
        self._step(lambda now: self.member.answered(number, answer, now))

    def unanswered(self, number: int) -> None:
        """Take note that a peer does not answer."""
        self._step(lambda _: self.member.unanswered(number))

    def take_over(self, leader: str, term: int) -> bool:
        """Ask for votes, as the leader wants; return whether it does."""
        term_before = self.member.term
        self._step(lambda now: self.member.take_over(leader, term, now))
        return self.member.term > term_before

    def append(self, record: bytes) -> tuple[LedgerEntry, asyncio.Future[bool]]:
        """Append a record, as leader.

        Args:
            record: its place in it is set here.

        Returns:
            The entry, and whether it is committed, when that is known; False: nobody knows.
        """
        size = ENTRY_HEADER_SIZE + len(record)
        position = self.log.next_position(size)
        body = placed(record, position + ENTRY_HEADER_SIZE)
        entry = LedgerEntry(self.member.ledger.end + 1, self.member.term, position, size, body)
        committed: asyncio.Future[bool] = self._loop.create_future()
        self._waiting[entry.index] = committed
        self._append((entry,))
        return entry, committed

    def propose(self, term: int, position: int, records: Sequence[bytes]) -> None:
        """Append records soon, as the leader of a term; see `Proposals.add`. In any thread."""
        self._proposals.add(term, position, records)

    def _append_proposed(self) -> None:
        entries = self._proposals.take(self.member, is_flushing=self._is_flushing)
        if entries:
            self._append(entries)

    def _append(self, entries: tuple[LedgerEntry, ...]) -> None:
        self._unwritten += entries
        self._step(lambda now: self.member.append(entries, now))

    def hold(self) -> None:
        """Append nothing that is proposed until `release`: another member is about to lead."""
        self._proposals.are_held = True

    def release(self) -> None:
        """Append what was proposed meanwhile, if this member still leads."""
        self._proposals.are_held = False
        self._append_proposed()

    @property
    def pending(self) -> int:
        """How many appends are not committed yet."""
        return len(self._waiting)

    async def send(self, peer: str, code: DLedgerRequest, body: bytes) -> bytes:
        """Ask a peer something that the member does not know of; see `Peers.send`."""
        return await self._peers.send(peer, code, body)

    async def send_to(self, address: str, code: DLedgerRequest, body: bytes) -> bytes:
        """Ask who is at an address; see `Peers.send_to`."""
        return await self._peers.send_to(address, code, body)

    def fail(self, error: Exception) -> None:
        """End: nothing is acknowledged any more."""
        if self.failed.done():
            return
        if not isinstance(error, RmqStoreError):
            _log.error("A step of this member failed.", exc_info=error)
            error = RmqStoreError(
                f"A step of this member failed, as the log tells: {type(error).__name__}: {error}. "
                "Please report this."
            )
        self.member.stopped = str(error)
        self._forget_waiting()
        self.failed.set_exception(error)

    async def close(self) -> None:
        """Stop: flush what was written, and save the commit index."""
        self.member.stopped = self.member.stopped or "it is closed"
        if self._timer is not None:
            self._timer.cancel()
        self._keeping_up.cancel()
        self._forget_waiting()
        await asyncio.gather(self._keeping_up, return_exceptions=True)
        await self._peers.close()
        self._flusher.close()
        try:
            if not self.failed.done():
                self.upkeep.save_all()
        finally:
            self._state.close()
            self.log.close()

    def _step(self, step: Callable[[int], object]) -> None:
        """Take a step of the member, and carry out what it wants."""
        if self.failed.done():
            return
        try:
            step(self._now())
        except Exception as error:  # noqa: BLE001 - it must not live on after half a step
            self.fail(error)
        else:
            self.act()

    # ---- actions -------------------------------------------------------------------------------

    def act(self) -> None:
        """Carry out what the member wants."""
        if self._is_acting or self.failed.done():
            return
        member = self.member
        self._is_acting = True
        try:
            while member.actions:
                actions, member.actions = member.actions, []
                for action in actions:
                    self._do(action)
            self._begin_flush()
        except Exception as error:  # noqa: BLE001 - it must not live on after half a step
            self.fail(error)
        finally:
            self._is_acting = False
        self._set_timer()

    def _do(self, action: Action) -> None:
        if isinstance(action, SendRequest):
            request = action.request
            if isinstance(request, Push) and request.type is not PushType.COMMIT:
                request = request._replace(entries=self._entries(request.first, request.last))
            self._peers.ask(action.peer, action.number, request)
        elif isinstance(action, Respond):
            self._answer(action.token, action.answer)
        elif isinstance(action, Write | Cut | Restart):
            self._change_log(action)
        elif isinstance(action, Save):
            self._state.write_term(action)
            if action.is_voter and not self._may_vote:
                _log.info("%s may vote.", self.group.me)
            self._may_vote = action.is_voter
        elif isinstance(action, CommittedUpTo):
            self._tell_committed(action.index)
        elif isinstance(action, RoleChanged):
            self._change_role(action)
        elif isinstance(action, CutRefused):
            leader = action.leader
            self._peerlog.warning(
                f"{leader}:", "%s, the leader, wants all behind entry %d cut, and more than that "
                "is committed or acknowledged here. This is refused. If it happens again, %s has "
                "lost entries: see docs/dledger.md.", leader, action.index, leader,
            )  # fmt: skip
        elif isinstance(action, BeginRefused):
            leader = action.leader
            self._peerlog.warning(
                f"{leader}:", "%s, the leader, has entries from %d on only, and this member ends "
                "with %d. If those between have expired, stop it, move its folder dledger-%s away, "
                "and start it: it then gets what the others have (docs/operate.md).",
                leader, action.index, self.log.last, self.member.me,
            )  # fmt: skip
        elif isinstance(action, Stop):
            raise CorruptStoreError(action.cause, file=self.log.data.folder)

    def _change_log(self, action: Write | Cut | Restart) -> None:
        self._changed = action.number
        if isinstance(action, Write):
            self.log.write(action.entries)
            self._unwritten.clear()
            self._newest = action.entries
        elif isinstance(action, Cut):
            self._newest = ()
            _log.warning("Entries %d to %d are cut.", action.end + 1, self.log.last)
            self.log.cut(action.end)
            # A disk may write what follows first: an old end could come back behind it.
            self.log.take_unflushed().flush()
        else:
            _log.warning("The log is begun again, without the %d entries.", self.log.last + 1)
            if self._watcher is not None:
                self._watcher.begins_again()
            # If a kill follows, the next start must not look for entries that are gone.
            self._state.note_entries(there=False)
            self._state.forget_committed()
            self._newest = ()
            self.log.restart()

    def _entries(self, first: int, last: int) -> tuple[LedgerEntry, ...]:
        newest = self._newest
        if newest and newest[0].index == first and newest[-1].index == last:
            return newest
        return self.log.read(first, last)

    def _end_of(self, index: int) -> int:
        newest = self._newest
        if newest and newest[0].index <= index:
            return _end_of(newest[index - newest[0].index])
        return self.log.unit(index).end

    def _change_role(self, action: RoleChanged) -> None:
        _log.info(
            "%s is %s in term %d; leader: %s.",
            self.group.me, action.role.name.lower(), action.term, action.leader or "none yet",
        )  # fmt: skip
        self._forget_waiting()
        end = self.log.end
        if action.role is MemberRole.LEADER:
            now = int(time.time() * 1000)
            first, _ = self.append(term_record(action.term, self.group.me, now))
            end = first.position + first.size
        if self._watcher is not None:
            self._watcher.role_changed(action, end)

    def _tell_committed(self, index: int) -> None:
        if self._watcher is not None:
            self._watcher.committed(self.log.data.starts[0], self._end_of(index))
        while self._waiting and (first := next(iter(self._waiting))) <= index:
            committed = self._waiting.pop(first)
            if not committed.done():
                committed.set_result(True)

    def _forget_waiting(self) -> None:
        for committed in self._waiting.values():
            if not committed.done():
                committed.set_result(False)
        self._waiting.clear()

    # ---- disk and time -------------------------------------------------------------------------

    def _begin_flush(self) -> None:
        if self._is_flushing or self._changed == self._flushed:
            return
        self._is_flushing = True
        self._flusher.flush(self._changed, self.log.take_unflushed())

    def _end_flush(self, number: int, error: Exception | None) -> None:
        self._is_flushing = False
        if self.failed.done():
            return
        if error is not None:
            self.fail(error)
            return
        self._flushed = number
        self._step(lambda now: self._take_flushed(number, now))
        self._append_proposed()

    def _take_flushed(self, number: int, now: int) -> None:
        self.member.flushed(number, now)
        ledger = self.member.ledger
        if ledger.begin <= ledger.flushed:  # noted before the member's answers go
            self._state.note_entries(there=True)

    async def _keep_up(self) -> None:
        try:
            await self.upkeep.run()
        except Exception as error:  # noqa: BLE001 - its files would not be kept up any more
            self.fail(error)

    def _within(self, first: int, last: int) -> int:
        """Return the last entry of a push: all of its entries are written, or none is."""
        if first <= self.log.last:
            return self.log.within(first, min(last, self.log.last), _PUSH_BYTES)
        begin = self._unwritten[0].index
        entries = self._unwritten[first - begin : last + 1 - begin]
        most = entries[0].position + _PUSH_BYTES
        return first + max(bisect_right(entries, most, key=_end_of) - 1, 0)

    def _set_timer(self) -> None:
        """Wake up when the member has something to do; a timer that ends before that is left."""
        if self.member.stopped:
            return
        wake = self.member.wake
        if self._timer is not None:
            if self._timer_ends <= wake:
                return
            self._timer.cancel()
        self._timer_ends = wake
        self._timer = self._loop.call_later(max(wake - self._now(), 1) / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._step(self.member.tick)

    def _now(self) -> int:
        return int(self._loop.time() * 1000)


def _end_of(entry: LedgerEntry) -> int:
    return entry.position + entry.size
