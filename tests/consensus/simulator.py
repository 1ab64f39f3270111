"""A group of members in one process, with a simulated clock, network and disks.

Nothing in it fails by itself: `runs` breaks things. What must hold is checked while it happens.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any, Final

from rmqstore_spark.consensus.actions import (
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
from rmqstore_spark.consensus.member import GroupMember
from rmqstore_spark.consensus.messages import LedgerEntry, Push, PushType
from rmqstore_spark.consensus.timing import Timing
from tests.consensus.checks import Checks, Violation
from tests.consensus.disks import Change, Disk

SIZE: Final = 100
"""Bytes of each entry."""
_TWICE: Final = 60
"""Milliseconds by which the second of a doubled message may be later."""


class Node:
    """A member with its disk, up or down.

    Attributes:
        life: of which messages and timers are.
        wake: when its timer ends; -1 if it has none.
        slow: how many times as long messages to it, and its flushes, take.
        told: the commit index that it has told in this life.
        waiting: (index, term, time asked) of appends.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.disk = Disk()
        self.member: GroupMember | None = None
        self.life = 0
        self.wake = self.told = -1
        self.slow = 1
        self.waiting: list[tuple[int, int, int]] = []

    @property
    def leads(self) -> bool:
        """Whether it does, as far as it knows."""
        return self.member is not None and self.member.role is MemberRole.LEADER

    @property
    def end(self) -> int:
        """The last entry that is on its disk; -1 while it is down."""
        return -1 if self.member is None else self.member.ledger.flushed


class Simulator:
    """Members, and what goes from one to the other.

    Args:
        chance: of all that is drawn.
        names: of the members.
        timing: theirs.
        member: makes them: tests give one with a rule switched off.

    Attributes:
        now: milliseconds.
        blocked: links, (from, to), that are cut.
        loss, doubling: the share of messages to which that happens.
        delay, flush: the most milliseconds of a message and of a flush.
        breaks: the share of actions before which a member loses its power.
    """

    def __init__(
        self,
        chance: random.Random,
        names: Sequence[str],
        timing: Timing,
        member: Callable[..., GroupMember] = GroupMember,
    ) -> None:
        self.chance = chance
        self.random = chance.random
        self.make = member
        self.now = 0
        self.checks = Checks()
        self.names = list(names)
        self.nodes = {name: Node(name) for name in names}
        self.timing = timing
        self.blocked: set[tuple[str, str]] = set()
        self.loss = self.doubling = self.breaks = 0.0
        self.delay = 2
        self.flush = 1
        self.events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._bodies = 0
        self._does: dict[type, Callable[[Node, Any], None]] = {
            SendRequest: self.request,
            Respond: self._respond,
            Write: self.change,
            Cut: self.change,
            Restart: self.change,
            Save: self.save,
            CommittedUpTo: self._committed,
            RoleChanged: self.role_changed,
            Stop: self._stop,
            CutRefused: lambda *_: None,  # it was told of
            BeginRefused: lambda *_: None,  # it was told of
        }

    # ---- time -----------------------------------------------------------------------------------

    def at(self, time: int, what: Callable[..., None], *arguments: Any) -> None:
        """Do something later."""
        self._count += 1
        heappush(self.events, (time, self._count, what, arguments))

    def until(self, end: int, done: Callable[[], bool] | None = None) -> None:
        """Let time pass."""
        events = self.events
        while events and events[0][0] <= end:
            if done is not None and done():
                return
            self.now, _, what, arguments = heappop(events)
            what(*arguments)
        self.now = max(self.now, end)

    # ---- members --------------------------------------------------------------------------------

    def start(self, node: Node) -> None:
        """Start a member from what its disk has."""
        if node.member is None:
            node.life += 1
            node.member = self.make(
                node.name, self.names, node.disk.saved, node.disk.start(),
                committed=node.disk.committed, now=self.now, chance=self.random,
                timing=self.timing,
            )  # fmt: skip
            node.wake = node.told = -1
            self.act(node)

    def crash(self, node: Node, *, is_kill: bool = False) -> None:
        """End a member, by a power cut if not by a kill."""
        if node.member is not None:
            self.checks.crashes += 1
            node.member = None
            node.life += 1
            node.waiting.clear()
            if is_kill:
                node.disk.kill(self.chance)
            else:
                node.disk.cut_power(self.chance)

    def act(self, node: Node) -> None:
        """Carry a member's actions out, in order."""
        member = node.member
        assert member is not None
        while member.actions:
            actions, member.actions = member.actions, []
            for action in actions:
                if self.breaks and self.random() < self.breaks:
                    self.crash(node)
                    self.at(self.now + self.chance.randint(1, 200), self.start, node)
                    return
                self._does[type(action)](node, action)
        wake = member.wake
        if node.wake < 0 or wake < node.wake:  # a later one is seen to when the timer ends
            node.wake = wake
            self.at(max(wake, self.now), self._tick, node, node.life, wake)

    def _tick(self, node: Node, life: int, wake: int) -> None:
        member = node.member
        if member is not None and node.life == life and node.wake == wake:
            node.wake = -1
            if member.wake <= self.now:
                member.tick(self.now)
            self.act(node)

    # ---- actions --------------------------------------------------------------------------------

    def request(self, node: Node, action: SendRequest) -> None:
        """Send a request, with the entries that it lacks."""
        request = action.request
        if type(request) is Push and request.type is not PushType.COMMIT:
            entries = node.disk.read(request.first, request.last)
            assert len(entries) == request.last - request.first + 1
            request = request._replace(entries=entries)
        token = (node.name, node.life, action.number)
        self._send(node.name, action.peer, self.receive, token, request)

    def _respond(self, node: Node, action: Respond) -> None:
        assert isinstance(action.token, tuple)
        asker, life, number = action.token
        self._send(node.name, asker, self.answered, life, number, action.answer)

    def change(self, node: Node, action: Change) -> None:
        """Change the ledger on disk, and flush it later."""
        if type(action) is Write:
            self.checks.wrote(action.entries)
        node.disk.do(action)
        delay = (1 + int(self.random() * self.flush)) * node.slow
        self.at(self.now + delay, self.flushed, node, node.life, action.number)

    def save(self, node: Node, action: Save) -> None:
        """Put term and vote on disk."""
        before = node.disk.saved
        if before is not None and action.term < before.term:
            raise Violation(f"{node.name} goes back from term {before.term} to {action.term}")
        is_same = before is not None and action.term == before.term and before.is_voter
        if before is not None and is_same and before.vote not in (None, action.vote):
            raise Violation(f"{node.name} votes for {before.vote} and {action.vote}")
        node.disk.saved = action

    def _committed(self, node: Node, action: CommittedUpTo) -> None:
        index = action.index
        self.checks.commit(node.name, node.disk, node.told, index)
        node.disk.committed = node.told = index
        waiting = node.waiting
        while waiting and waiting[0][0] <= index:
            at, term, asked = waiting.pop(0)
            self.checks.acknowledged.append((asked, self.now, at, term))

    def role_changed(self, node: Node, action: RoleChanged) -> None:
        """A new leader appends an entry of its term."""
        node.waiting.clear()
        if action.role is MemberRole.LEADER:
            self.checks.elected(node.name, action.term, node.disk)
            self._append(node)

    def _stop(self, node: Node, action: Stop) -> None:
        raise Violation(f"{node.name} stops: {action.cause}")

    # ---- network --------------------------------------------------------------------------------

    def _send(self, source: str, target: str, what: Callable[..., None], *arguments: Any) -> None:
        if self.blocked and (source, target) in self.blocked:
            return
        draw = self.random
        if self.loss and draw() < self.loss:
            return
        node = self.nodes[target]
        time = self.now + (1 + int(draw() * self.delay)) * node.slow
        self._count += 1
        heappush(self.events, (time, self._count, what, (node, *arguments)))
        if self.doubling and draw() < self.doubling:
            self.at(time + int(draw() * _TWICE), what, node, *arguments)

    def receive(self, node: Node, token: object, request: Any) -> None:
        """A request has come."""
        if node.member is not None:
            node.member.receive(token, request, self.now)
            self.act(node)

    def answered(self, node: Node, life: int, number: int, answer: Any) -> None:
        """An answer has come."""
        if node.member is not None and node.life == life:
            node.member.answered(number, answer, self.now)
            self.act(node)

    def flushed(self, node: Node, life: int, number: int) -> None:
        """A flush is over."""
        if node.member is not None and node.life == life:
            node.disk.flush(number)
            node.member.flushed(number, self.now)
            self.act(node)

    # ---- clients --------------------------------------------------------------------------------

    def new_entry(self, index: int, term: int) -> LedgerEntry:
        """Return an entry that there was not before."""
        self._bodies += 1
        return LedgerEntry(index, term, index * SIZE, SIZE, self._bodies)

    def _append(self, node: Node, asked: int = -1) -> None:
        member = node.member
        assert member is not None
        index = member.ledger.end + 1
        if asked >= 0:
            node.waiting.append((index, member.term, asked))
        member.append((self.new_entry(index, member.term),), self.now)

    def client(self, node: Node) -> None:
        """Send an append to a node, which takes it if it leads."""
        if node.leads:
            self._append(node, self.now)
            self.act(node)
