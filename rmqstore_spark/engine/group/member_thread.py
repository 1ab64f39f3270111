"""Runs a member of a group in a thread of its own, with an event loop.

The engine's threads propose records, and take what the member decides: each decision is put into a
queue, in order, and nobody waits here for the engine.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import uvloop

from rmqstore_spark.consensus.actions import MemberRole, RoleChanged
from rmqstore_spark.consensus.driver.driver import Driver
from rmqstore_spark.consensus.driver.group import (
    MemberStore,
    OldLog,
    QueueEndsTold,
    no_queue_ends,
)
from rmqstore_spark.consensus.driver.protection import MemberProtection
from rmqstore_spark.consensus.driver.queue_end_pages import BEFORE_ALL, Route
from rmqstore_spark.consensus.driver.running import RunningMember
from rmqstore_spark.consensus.driver.wire import (
    DLedgerRequest,
    WireAskQueueEnds,
    WireMessage,
    WireMetadataAnswer,
    WireQueueEnds,
    code_words,
    decode,
    encode,
)
from rmqstore_spark.consensus.messages import MemberCode
from rmqstore_spark.consensus.timing import Timing
from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.group.member_port import bound_member_port
from rmqstore_spark.engine.group.store_group import MemberBrokers
from rmqstore_spark.engine.tables.queue_ends import QueueEnds
from rmqstore_spark.errors import FrameError, RmqStoreError, ServiceError

_NEVER: Final = float("inf")
_ANSWER_S: Final = 10.0
_GATHER_S: Final = 0.02
"""From one commit that a follower's engine is told of to the next: nobody waits for it there."""
_T = TypeVar("_T")


class CommittedLog(NamedTuple):
    """Entries are committed, and on this member's disk.

    Attributes:
        begin: where the log begins.
        end: position behind the last one.
    """

    begin: int
    end: int


class GroupChange(NamedTuple):
    """The member has another role, term or leader.

    Attributes:
        leads: whether it leads.
        term: the term.
        leader: who leads, as far as it is known.
        end: position behind the last entry; if it leads, behind the one with which its term begins.
    """

    leads: bool
    term: int
    leader: str | None
    end: int


class MemberEnd(NamedTuple):
    """The member has ended: nothing more is decided.

    Attributes:
        error: why; None if it was closed.
    """

    error: Exception | None


Decision: TypeAlias = CommittedLog | GroupChange | MemberEnd


class DecisionQueue:
    """What a member decides, in order, until the engine takes it. Thread-safe.

    Of commits in a row it holds only the last, which has the others. So it stays short, however
    long a follower's engine waits, such as for room on its disk. It keeps the last of changes in a
    row, too: whatever comes between two that it has not taken, the engine would end it again.
    """

    def __init__(self) -> None:
        self._decided = threading.Condition()
        self._held: deque[Decision] = deque()

    def put(self, decision: Decision) -> None:
        """Add a decision; never waits for the engine."""
        with self._decided:
            last = self._held[-1] if self._held else None
            # Of two ends, the first tells why.
            if type(last) is type(decision) and not isinstance(decision, MemberEnd):
                self._held.pop()
            self._held.append(decision)
            self._decided.notify()

    def take(self, timeout: float | None = None) -> Sequence[Decision]:
        """Wait for decisions, and return all there are.

        Args:
            timeout: seconds; None: however long it takes.

        Returns:
            The decisions, in order; none if there are none in time.
        """
        with self._decided:
            self._decided.wait_for(lambda: self._held, timeout)
            taken, self._held = self._held, deque()
        return taken


class MemberThread:
    """A member that runs, from `start` until `close`. Its methods are for any thread.

    Args:
        store: the store directory.
        config: of the store.
        brokers: those of its group.
        protection: of its port and its calls; None: as the configuration says, without accounts.
        old: what the store had before.

    Attributes:
        decisions: what it decides, in order.
        group: the group.
        committed: position behind the last entry that is known to be committed; 0 for none.
        segment_size: bytes of a segment.
        data_folder: the folder of its segments.
        old: as given.
        is_ending: whether it ends, or has ended: what it is asked fails then.

    Raises:
        OptionError: files of its protection are wrong.
        ServiceError: nothing can listen at its address.
        CorruptStoreError: its files are damaged.
    """

    def __init__(
        self,
        store: str,
        config: StoreConfig,
        brokers: MemberBrokers,
        protection: MemberProtection | None,
        old: OldLog,
    ) -> None:
        self.old = old
        self._protection = protection or MemberProtection.of(config, None)
        self.group = brokers.group
        self._brokers = brokers
        self._store = store
        self._config = config
        self.decisions = DecisionQueue()
        self.segment_size = config.mapped_file_size_commit_log
        self.data_folder = ""
        self.committed = 0
        self._bound = bound_member_port(self.group, config.d_leger_bind_address, self._protection)
        self._told = _Decisions(self.decisions, store)
        self.is_ending = False
        self._queue_ends = no_queue_ends
        self._ends: QueueEnds | None = None
        self._driver: Driver | None = None
        self._failure: Exception | None = None
        self._ended: Callable[[], object] = lambda: None
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rmqstore-member", daemon=True)
        self._thread.start()
        self._is_ready.wait()
        self._check()

    # ---- for the engine ------------------------------------------------------------------------

    def propose(self, term: int, position: int, records: Sequence[bytes]) -> None:
        """Append records, if this member still leads in a term; see `Proposals.add`."""
        self._driver_now.propose(term, position, records)

    def note_committed(self) -> None:
        """Let readers of the files see what was decided; see `LogUpkeep.note`."""
        self._driver_now.upkeep.note()

    def remove_first(self, start: int) -> None:
        """Remove the first segment of the log.

        Raises:
            StoreWriteError: it could not be removed.
            ServiceError: the member has ended.
        """

        async def remove() -> None:
            self._driver_now.upkeep.remove_first(start)

        self._in_loop(remove())

    def leader_broker(self) -> str:
        """Return where the broker of another member that leads is, as `host:port`; "" for none.

        Raises:
            ServiceError: that member cannot be reached, or tells an address of this machine.
        """

        async def ask() -> str:
            driver = self._driver_now
            leader = driver.member.leader
            if leader is None or leader == self.group.me:
                return ""
            asked = encode(WireMessage(group=self.group.name, remote_id=leader))
            body = await driver.send(leader, DLedgerRequest.METADATA, asked)
            return self._brokers.learn(leader, decode(WireMetadataAnswer, body).broker_addr)

        try:
            return self._in_loop(ask())
        except FrameError as error:
            raise ServiceError(f"The leader gave an answer that cannot be read: {error}.") from None

    @property
    def others(self) -> tuple[str, ...]:
        """The ids of the other members."""
        return tuple(peer for peer in self.group.ids if peer != self.group.me)

    def queue_ends_of(self, peer: str, last: Route) -> QueueEndsTold:
        """Ask another member where queues end; RocketMQ's know of none.

        Args:
            peer: which one.
            last: the queue behind which the page begins.

        Returns:
            The page.

        Raises:
            ServiceError: it does not say it.
        """

        async def ask() -> QueueEndsTold:
            driver, name = self._driver_now, self.group.name
            if last == BEFORE_ALL:
                asked = encode(WireMessage(group=name, remote_id=peer))
                met = await driver.send(peer, DLedgerRequest.METADATA, asked)
                if not decode(WireMetadataAnswer, met).process:
                    return no_queue_ends()
            topic, queue_id = last
            asked = encode(
                WireAskQueueEnds(group=name, remote_id=peer, topic=topic, queue_id=queue_id)
            )
            page = decode(WireQueueEnds, await driver.send(peer, DLedgerRequest.QUEUE_ENDS, asked))
            if page.code != MemberCode.SUCCESS:
                raise ServiceError(f"it refuses to say it, code {code_words(page.code)}")
            return QueueEndsTold(page.known, page.ends, page.log_end, page.is_last)

        try:
            return self._in_loop(ask())
        except FrameError as error:
            raise ServiceError(str(error)) from None

    def log_begin(self) -> tuple[int, int] | None:
        """Return index and position of the log's first entry; None without entries."""

        async def begin() -> tuple[int, int] | None:
            log = self._driver_now.log
            return None if log.is_empty else (log.begin, log.data.starts[0])

        return self._in_loop(begin())

    def serve(self, queue_ends: Callable[[], QueueEndsTold], ends: QueueEnds) -> None:
        """Tell the other members from now on where the queues of the store end: it is open."""
        self._queue_ends, self._ends = queue_ends, ends

    def stats(self) -> dict[str, object]:
        """Return figures of the member, as JSON values. The lag of a peer is None if unknown."""
        driver = self._driver_now
        member = driver.member
        leads = member.role is MemberRole.LEADER
        peers = member.peers if leads else ()
        return {
            "groupRole": member.role.name,
            "groupTerm": member.term,
            "groupLeader": member.leader or "",
            "groupHasLeader": member.leader is not None,
            "groupCommitIndex": member.commit,
            "groupLastIndex": member.ledger.end,
            "groupElections": self._told.elections,
            "groupIsVoter": member.is_voter,
            "groupProtection": self._protection.words,
            "groupLagEntries": {peer: member.behind(peer) for peer in peers},
        }

    def _in_loop(self, work: Coroutine[Any, Any, _T]) -> _T:
        error = ServiceError("The member of the group has ended, or does not answer.")
        try:
            begun = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the loop is closed
            work.close()
            raise error from None
        try:
            return begun.result(_ANSWER_S)
        except (FutureTimeout, CancelledError):
            raise error from None

    def close(self) -> None:
        """End the member: what it has written is flushed."""
        self.is_ending = True
        with suppress(RuntimeError):  # the event loop has ended with an error
            self._ended()
        self._thread.join()

    @property
    def _driver_now(self) -> Driver:
        assert self._driver is not None, "the member is not ready"
        return self._driver

    def _check(self) -> None:
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    # ---- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        loop = self._loop = uvloop.new_event_loop()
        asyncio.set_event_loop(loop)
        error: Exception | None = None
        try:
            loop.run_until_complete(self._serve())
        except Exception as failure:  # noqa: BLE001 - the constructor raises it, or the engine has it
            error = failure
            if not self._is_ready.is_set():
                self._failure = failure
        finally:
            self.is_ending = True
            self._bound.close()
            self._told.tell()
            self.decisions.put(MemberEnd(error))
            self._is_ready.set()
            loop.run_until_complete(_end_tasks())
            loop.close()

    async def _serve(self) -> None:
        config = self._config
        member = RunningMember(
            self.group,
            self._store,
            self.segment_size,
            _NEVER,
            timing=Timing.of(config.d_leger_heartbeat_interval),
            takes_records=False,
            broker=config.host[0] if config.is_broker else "",
            protection=self._protection,
            served=MemberStore(
                config.broker_name,
                self.old,
                lambda: self._queue_ends(),
                lambda: self._ends is not None and not self._ends.are_lacking,
            ),
            watcher=self._told,
        )
        driver = self._driver = member.driver
        driver.upkeep.note()
        self.data_folder = driver.log.data.folder
        self.committed = self._told.committed_to
        ended = asyncio.Event()

        def ready(_: str) -> None:
            self._ended = lambda: self._loop.call_soon_threadsafe(ended.set)
            self._is_ready.set()

        await member.serve(self._bound, config.preferred_leaders, ended, ready)


async def _end_tasks() -> None:
    """End what other threads have asked, before the event loop is closed: nobody answers any more.

    What is left behind, asyncio tells in the log as an error.
    """
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Decisions:
    """Puts what a driver decides into the queue, in order. See `MemberWatcher`.

    A leader's commits are told at once: clients wait for them. Those of a follower gather for a
    while, so that it puts many entries into queues and index at a time. It then has the processor
    for its leader's next push.

    Args:
        queue: the queue.
        store: the store directory.

    Attributes:
        committed_to: position behind the last committed entry; 0 for none.
        elections: how many were won.
    """

    def __init__(self, queue: DecisionQueue, store: str) -> None:
        self._queue = queue
        self._store = store
        self._leads = False
        self._gathered: CommittedLog | None = None
        self._next: asyncio.TimerHandle | None = None  # before it, nothing is told
        self.committed_to = 0
        self.elections = 0

    def committed(self, begin: int, end: int) -> None:
        """Tell the engine how far entries are committed, now or soon."""
        self.committed_to = end
        self._gathered = CommittedLog(begin, end)
        if self._leads:
            self.tell()
        elif self._next is None:
            self._tell_next()

    def _tell_next(self) -> None:
        self._next = None
        if self._gathered is not None:
            self.tell()
            self._next = asyncio.get_running_loop().call_later(_GATHER_S, self._tell_next)

    def tell(self) -> None:
        """Tell the engine all commits that have gathered."""
        gathered, self._gathered = self._gathered, None
        if gathered is not None:
            self._queue.put(gathered)

    def role_changed(self, change: RoleChanged, end: int) -> None:
        """Tell the engine of another role."""
        self._leads = change.role is MemberRole.LEADER
        self.elections += self._leads
        self.tell()
        self._queue.put(GroupChange(self._leads, change.term, change.leader, end))

    def begins_again(self) -> None:
        """End what the engine does if it had entries: queues cannot follow while they are open."""
        if self.committed_to:
            QueueEnds(self._store).lack()  # they are those of the entries that go
            self._gathered = None
            self._queue.put(
                MemberEnd(
                    RmqStoreError(
                        "The members of the group have removed entries that this one lacked: its "
                        "log begins again. Start the process again: it then builds its queues for "
                        "that log."
                    )
                )
            )
