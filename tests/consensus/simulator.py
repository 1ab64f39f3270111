"""Runs a group of members with a simulated clock, network and disks, all from one seed.

`run(seed)` plays one group: messages are late, lost, doubled and out of order, links are cut in one
or both directions, members are slow, crash between any two actions, lose what they had not flushed,
wholly or in part, and lose their disks, as long as that is a minority. Then all faults end, and the
group must take appends again. What must hold is checked while it happens: see `Checks`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import Any, Final

from rmqstore_spark.consensus.actions import (
    CommittedUpTo,
    Cut,
    MemberRole,
    Respond,
    Restart,
    RoleChanged,
    Save,
    SendRequest,
    Stop,
    Write,
)
from rmqstore_spark.consensus.ledger import MemberLedger
from rmqstore_spark.consensus.member import GroupMember
from rmqstore_spark.consensus.messages import LedgerEntry, Push, PushType
from rmqstore_spark.consensus.timing import Timing

TIMING: Final = Timing(
    heartbeat=40, leaks=3, vote_wait=40, round_gap=6, round_spread=24,
    push_wait=20, compare_wait=40, retry=10, idle=40, window=4, batch=4,
)  # fmt: skip
FAULTY: Final = 1000
"""Milliseconds with faults."""
HEALTHY: Final = 3000
"""Milliseconds after them within which an append must be acknowledged."""
SIZE = 100

MIXES: Final = (
    (30, 10, 20, 15, 7, 5, 13),
    (20, 4, 20, 15, 4, 2, 35),
    (15, 0, 45, 30, 5, 5, 0),
)
"""How often each kind of fault comes in a run, in the order of `Simulator.fault`."""


class Violation(AssertionError):
    """Something that must hold did not."""


class Disk:
    """What a member has stored. `kept` is what a crash cannot take."""

    def __init__(self) -> None:
        self.saved: Save | None = None
        self.begin = 0
        self.entries: list[LedgerEntry] = []
        self.committed = -1
        self.pending: list[Write | Cut | Restart] = []
        self.kept_begin = 0
        self.kept: list[LedgerEntry] = []

    def do(self, action: Write | Cut | Restart) -> None:
        """Change the files, without flushing them."""
        self.begin = _apply(self.entries, self.begin, action)
        self.pending.append(action)

    def flush(self, number: int) -> None:
        """Keep all changes up to a number."""
        while self.pending and self.pending[0].number <= number:
            self.kept_begin = _apply(self.kept, self.kept_begin, self.pending.pop(0))

    def crash(self, chance: random.Random) -> None:
        """Keep a part of what was not flushed: some changes, and a part of the next."""
        whole = chance.randint(0, len(self.pending))
        for action in self.pending[:whole]:
            self.kept_begin = _apply(self.kept, self.kept_begin, action)
        torn = self.pending[whole] if whole < len(self.pending) else None
        if isinstance(torn, Write) and len(torn.entries) > 1:
            part = torn.entries[: chance.randint(1, len(torn.entries) - 1)]
            self.kept_begin = _apply(self.kept, self.kept_begin, Write(torn.number, part))
        self.pending.clear()
        self.entries, self.begin = list(self.kept), self.kept_begin

    def ledger(self) -> MemberLedger:
        """Return what a start finds."""
        terms: list[tuple[int, int]] = []
        for entry in self.entries:
            if not terms or terms[-1][1] != entry.term:
                terms.append((entry.index, entry.term))
        return MemberLedger(self.begin, self.begin + len(self.entries) - 1, terms)

    def read(self, first: int, last: int) -> tuple[LedgerEntry, ...]:
        """Return entries."""
        return tuple(self.entries[first - self.begin : last - self.begin + 1])

    def expire(self, begin: int) -> None:
        """Forget entries before `begin`, all of which are flushed."""
        del self.entries[: begin - self.begin]
        del self.kept[: begin - self.kept_begin]
        self.begin = self.kept_begin = begin


def _apply(entries: list[LedgerEntry], begin: int, action: Write | Cut | Restart) -> int:
    if isinstance(action, Write):
        if not entries:
            begin = action.entries[0].index
        entries.extend(action.entries)
    elif isinstance(action, Cut):
        del entries[action.end + 1 - begin :]
    else:
        entries.clear()
    return begin


@dataclass
class Checks:
    """What must hold, over all members and the whole run.

    Attributes:
        written: body of each (index, term) that anybody wrote: there is one.
        committed: the entry at each index that is committed: there is one.
        leaders: who leads in each term: it is one.
        acknowledged: (time asked, time answered, index, term) of each append.
    """

    written: dict[tuple[int, int], object] = field(default_factory=dict)
    committed: dict[int, tuple[int, object]] = field(default_factory=dict)
    leaders: dict[int, str] = field(default_factory=dict)
    acknowledged: list[tuple[int, int, int, int]] = field(default_factory=list)
    elections: int = 0
    crashes: int = 0

    def wrote(self, entries: tuple[LedgerEntry, ...]) -> None:
        """An index and a term name one entry."""
        for entry in entries:
            if self.written.setdefault((entry.index, entry.term), entry.body) != entry.body:
                raise Violation(f"two entries {entry.index} of term {entry.term}")

    def commit(self, who: str, disk: Disk, before: int, index: int) -> None:
        """Committed prefixes agree."""
        for entry in disk.read(max(before + 1, disk.begin), index):
            here = (entry.term, entry.body)
            if self.written[entry.index, entry.term] != entry.body:
                raise Violation(f"{who} commits entry {entry.index}, which nobody wrote so")
            if self.committed.setdefault(entry.index, here) != here:
                was = self.committed[entry.index]
                raise Violation(f"{who} commits {here} at {entry.index}, where {was} was")

    def elected(self, who: str, term: int, disk: Disk) -> None:
        """There is one leader a term, and it has all that was acknowledged."""
        self.elections += 1
        if self.leaders.setdefault(term, who) != who:
            raise Violation(f"{who} and {self.leaders[term]} lead in term {term}")
        end = disk.begin + len(disk.entries) - 1
        for _, _, index, of in self.acknowledged:
            if index < disk.begin:
                continue  # expired
            if index > end or disk.entries[index - disk.begin].term != of:
                raise Violation(f"{who} leads in term {term} without entry {index} of term {of}")

    def order(self) -> None:
        """An append that began after another was acknowledged is behind it."""
        answers = sorted((answered, index) for _, answered, index, _ in self.acknowledged)
        highest, at = -1, 0
        for asked, _, index, _ in sorted(self.acknowledged):
            while at < len(answers) and answers[at][0] < asked:
                highest = max(highest, answers[at][1])
                at += 1
            if index <= highest:
                raise Violation(f"entry {index} was asked for after {highest} was acknowledged")


class Node:
    """A member with its disk, up or down."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.disk = Disk()
        self.member: GroupMember | None = None
        self.life = 0  # of which messages and timers are
        self.wake = -1
        self.slow = 1
        self.waiting: list[tuple[int, int, int]] = []  # (index, term, time asked) of appends


class Simulator:
    """One run. `member` makes the members: tests give one with a rule switched off."""

    def __init__(self, seed: int, member: Callable[..., GroupMember] = GroupMember) -> None:
        self.chance = random.Random(seed)
        self.make = member
        self.now = 0
        self.checks = Checks()
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._bodies = 0
        names = [f"n{number}" for number in range(self.chance.choice((3, 3, 3, 5)))]
        self.nodes = {name: Node(name) for name in names}
        self.names = names
        self.blocked: set[tuple[str, str]] = set()
        rate = self.chance.choice((0.0, 0.0, 0.02, 0.1))
        self.loss, self.doubling = rate, rate / 2
        self.delay = self.chance.choice((2, 2, 5, 15))
        self.flush = self.chance.choice((1, 3, 10, 40))
        self.timing = replace(
            TIMING, batch=self.chance.choice((1, 4)), window=self.chance.choice((1, 4))
        )
        self.mix = self.chance.choice(MIXES)
        self.unlucky = self.chance.choice((0.0, 0.0, 0.3, 0.7))  # leaders that soon fail
        self.breaks = self.chance.choice((0.0, 0.0, 0.001, 0.003))  # crashes between two actions
        self.faulty = True

    # ---- time -----------------------------------------------------------------------------------

    def at(self, time: int, what: Callable[..., None], *arguments: Any) -> None:
        """Do something later."""
        self._count += 1
        heappush(self._events, (time, self._count, what, arguments))

    def until(self, end: int, done: Callable[[], bool] | None = None) -> None:
        """Let time pass."""
        events = self._events
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
                node.name, self.names, node.disk.saved, node.disk.ledger(),
                committed=node.disk.committed, now=self.now, chance=self.chance.random,
                timing=self.timing,
            )  # fmt: skip
            node.wake = -1
            self.act(node)

    def crash(self, node: Node) -> None:
        """Kill a member: what it had not flushed is lost, or not."""
        if node.member is not None:
            self.checks.crashes += 1
            node.member = None
            node.life += 1
            node.waiting.clear()
            node.disk.crash(self.chance)

    def act(self, node: Node) -> None:
        """Carry a member's actions out, in order."""
        member = node.member
        while member is not None and member.actions:
            actions, member.actions = member.actions, []
            for action in actions:
                if self.breaks and self.faulty and self.chance.random() < self.breaks:
                    self.crash(node)
                    self.at(self.now + self.chance.randint(1, 200), self.start, node)
                    return
                self._do(node, member, action)
        if member is None or member.stopped:
            return
        wake = member.wake
        if node.wake < 0 or wake < node.wake:  # a later one is seen to when the timer ends
            node.wake = wake
            self.at(max(node.wake, self.now), self._tick, node, node.life, node.wake)

    def _tick(self, node: Node, life: int, wake: int) -> None:
        if node.life == life and node.member is not None and node.wake == wake:
            node.wake = -1
            if node.member.wake <= self.now:
                node.member.tick(self.now)
            self.act(node)

    def _do(self, node: Node, member: GroupMember, action: object) -> None:
        if isinstance(action, SendRequest):
            request = action.request
            if isinstance(request, Push) and request.type is not PushType.COMMIT:
                entries = node.disk.read(request.first, request.last)
                assert len(entries) == request.last - request.first + 1
                request = request._replace(entries=entries)
            token = (node.name, node.life, action.number)
            self._send(node.name, action.peer, self._receive, token, request)
        elif isinstance(action, Respond):
            assert isinstance(action.token, tuple)
            asker, life, number = action.token
            self._send(node.name, asker, self._answered, life, number, action.answer)
        elif isinstance(action, Write | Cut | Restart):
            if isinstance(action, Write):
                self.checks.wrote(action.entries)
            node.disk.do(action)
            delay = self.chance.randint(1, self.flush) * node.slow
            self.at(self.now + delay, self._flushed, node, node.life, action.number)
        elif isinstance(action, Save):
            self.save(node, action)
        elif isinstance(action, CommittedUpTo):
            self.checks.commit(node.name, node.disk, node.disk.committed, action.index)
            node.disk.committed = action.index
            self._acknowledge(node, action.index)
        elif isinstance(action, RoleChanged):
            node.waiting.clear()
            if action.role is MemberRole.LEADER:
                self.checks.elected(node.name, action.term, node.disk)
                self._append(node, member)
                if self.faulty and self.chance.random() < self.unlucky:
                    after = self.chance.randint(0, 12)
                    self.at(self.now + after, self._strike, node, node.life)
        elif isinstance(action, Stop):
            raise Violation(f"{node.name} stops: {action.cause}")

    def save(self, node: Node, action: Save) -> None:
        """Put term and vote on disk."""
        before = node.disk.saved
        if before is not None and action.term < before.term:
            raise Violation(f"{node.name} goes back from term {before.term} to {action.term}")
        node.disk.saved = action

    # ---- network --------------------------------------------------------------------------------

    def _send(self, source: str, target: str, what: Callable[..., None], *arguments: Any) -> None:
        if (source, target) in self.blocked:
            return
        chance = self.chance
        if self.loss and chance.random() < self.loss:
            return
        delay = (1 + int(chance.random() * self.delay)) * self.nodes[target].slow
        self.at(self.now + delay, what, self.nodes[target], *arguments)
        if self.doubling and chance.random() < self.doubling:
            self.at(self.now + delay + chance.randint(0, 60), what, self.nodes[target], *arguments)

    def _receive(self, node: Node, token: object, request: Any) -> None:
        if node.member is not None:
            node.member.receive(token, request, self.now)
            self.act(node)

    def _answered(self, node: Node, life: int, number: int, answer: Any) -> None:
        if node.member is not None and node.life == life:
            node.member.answered(number, answer, self.now)
            self.act(node)

    def _flushed(self, node: Node, life: int, number: int) -> None:
        if node.member is not None and node.life == life:
            node.disk.flush(number)
            node.member.flushed(number, self.now)
            self.act(node)

    # ---- clients --------------------------------------------------------------------------------

    def _append(self, node: Node, member: GroupMember, asked: int = -1) -> None:
        self._bodies += 1
        index = member.ledger.end + 1
        entry = LedgerEntry(index, member.term, index * SIZE, SIZE, self._bodies)
        if asked >= 0:
            node.waiting.append((index, member.term, asked))
        member.append((entry,), self.now)

    def client(self, node: Node) -> None:
        """Send an append to a node, which takes it if it leads."""
        if node.member is not None and node.member.role is MemberRole.LEADER:
            self._append(node, node.member, self.now)
            self.act(node)

    def _acknowledge(self, node: Node, index: int) -> None:
        while node.waiting and node.waiting[0][0] <= index:
            at, term, asked = node.waiting.pop(0)
            self.checks.acknowledged.append((asked, self.now, at, term))

    # ---- faults ---------------------------------------------------------------------------------

    def fault(self) -> None:
        """Break something, or mend it."""
        chance = self.chance
        node = self.nodes[chance.choice(self.names)]
        kinds: tuple[Callable[[Node], None], ...] = (
            self._crash_for_a_while, self._lose_disk, self._partition, self._mend, self._slow,
            self._hand_over, self._expire,
        )  # fmt: skip
        chance.choices(kinds, self.mix)[0](node)

    def _strike(self, node: Node, life: int) -> None:
        """Crash a leader, or cut it off from all others."""
        if node.member is None or node.life != life or not self.faulty:
            return
        if self.chance.random() < 0.5:
            self._crash_for_a_while(node)
        else:
            for other in self.names:
                self.blocked |= {(node.name, other), (other, node.name)}

    def _crash_for_a_while(self, node: Node) -> None:
        self.crash(node)
        self.at(self.now + self.chance.randint(1, 300), self.start, node)

    def _mend(self, _: Node) -> None:
        self.blocked.clear()

    def _slow(self, node: Node) -> None:
        node.slow = self.chance.choice((1, 1, 5, 20))

    def _lose_disk(self, node: Node) -> None:
        forgetful = sum(
            each.disk.saved is None or not each.disk.saved.is_voter
            for each in self.nodes.values()
            if each is not node
        )
        if forgetful < (len(self.names) - 1) // 2:
            self.crash(node)
            node.disk = Disk()
            self.at(self.now + self.chance.randint(1, 200), self.start, node)

    def _partition(self, _: Node) -> None:
        chance = self.chance
        one = set(chance.sample(self.names, chance.randint(1, len(self.names) - 1)))
        both_ways = chance.random() < 0.6
        for source in one:
            for target in set(self.names) - one:
                self.blocked.add((source, target))
                if both_ways:
                    self.blocked.add((target, source))

    def _hand_over(self, node: Node) -> None:
        member = node.member
        if member is not None and member.leader is not None:
            member.take_over(member.leader, member.term, self.now)
            self.act(node)

    def _expire(self, node: Node) -> None:
        disk, member = node.disk, node.member
        if member is None:
            return
        last = min(disk.committed, member.ledger.flushed, disk.kept_begin + len(disk.kept) - 1)
        if last > disk.begin:
            begin = self.chance.randint(disk.begin, last)
            member.ledger.expire(begin)
            disk.expire(begin)

    # ---- a run ----------------------------------------------------------------------------------

    def run(self) -> Checks:
        """Play a run; raise `Violation` if something does not hold."""
        chance = self.chance
        for node in self.nodes.values():
            self.at(chance.randint(0, 20), self.start, node)
        every = chance.choice((8, 20, 50))
        for time in range(100, FAULTY, every):
            self.at(time, self.client, self.nodes[chance.choice(self.names)])
        at = chance.randint(50, 300)
        while at < FAULTY:
            self.at(at, self.fault)
            at += chance.randint(1, 200)
        self.until(FAULTY)
        self._heal()
        self._progress()
        self._all_vote()
        if chance.random() < 0.2:
            self._catch_up_idle()
        self.checks.order()
        return self.checks

    def _progress(self) -> None:
        """Let clients append until one is answered."""
        before = len(self.checks.acknowledged)
        end = self.now + HEALTHY

        def client() -> None:
            for node in self.nodes.values():
                self.client(node)
            self.at(self.now + 10, client)

        client()
        self.until(end, lambda: len(self.checks.acknowledged) > before)
        if len(self.checks.acknowledged) == before:
            raise Violation(f"no append was acknowledged within {HEALTHY} ms after the faults")
        self._events = [event for event in self._events if event[2] is not client]
        heapify(self._events)

    def _all_vote(self) -> None:
        """Members that have lost their disks may vote again, though nobody appends."""

        def done() -> bool:
            return all(node.member and node.member.is_voter for node in self.nodes.values())

        self.until(self.now + HEALTHY, done)
        if not done():
            raise Violation(f"a member may not vote {HEALTHY} ms after the faults")

    def _catch_up_idle(self) -> None:
        """A follower that loses its disk gets all entries again, though nobody appends."""
        self.until(self.now + HEALTHY, lambda: any(map(self._leads, self.nodes.values())))
        leader = max(
            filter(self._leads, self.nodes.values()),
            key=lambda node: node.member.term if node.member else -1,
        )
        others = [node for node in self.nodes.values() if node is not leader]
        self._lose_disk(node := self.chance.choice(others))
        self.until(self.now + HEALTHY, lambda: self._end(node) == self._end(leader) >= 0)
        if self._end(node) != self._end(leader):
            raise Violation(f"{node.name} has not caught up within {HEALTHY} ms")

    def _leads(self, node: Node) -> bool:
        return node.member is not None and node.member.role is MemberRole.LEADER

    def _end(self, node: Node) -> int:
        return -1 if node.member is None else node.member.ledger.flushed

    def _calm(self) -> None:
        self.faulty = False
        self.blocked.clear()
        self.delay = 2
        self.loss = self.doubling = 0.0

    def _heal(self) -> None:
        self._calm()
        for node in self.nodes.values():
            node.slow = 1
            self.start(node)


def run(seed: int, member: Callable[..., GroupMember] = GroupMember) -> Checks:
    """Play the run of a seed."""
    return Simulator(seed, member).run()
