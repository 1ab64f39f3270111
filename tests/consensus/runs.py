"""Plays a group with every fault, all from one seed.

`run(seed)`: messages are late, lost, doubled and out of order, links are cut in one or both
directions, members are slow, are killed or lose power between any two actions, lose what they had
not flushed, wholly or in part, fail to flush, and lose their disks, also just after they have
acknowledged entries, as long as that is a minority; leaders are struck when they are new, followers
when they have cut their ledgers; leadership is handed over, entries expire, and a peer lies. Then
all faults end, and the group must take appends again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from heapq import heapify
from typing import Any, ClassVar, Final

from rmqstore_spark.consensus.actions import MemberRole, RoleChanged, Save, Write
from rmqstore_spark.consensus.member import GroupMember
from rmqstore_spark.consensus.messages import LedgerEntry, Push
from rmqstore_spark.consensus.timing import Timing
from tests.consensus.checks import Checks, Violation
from tests.consensus.disks import Change, Disk
from tests.consensus.lies import answered_falsely, falsehood, is_placed
from tests.consensus.simulator import Node, Simulator

HEARTBEAT: Final = 40
_TIMING: Final = Timing(
    heartbeat=HEARTBEAT, leaks=3, vote_wait=40, round_gap=6, round_spread=24,
    push_wait=20, compare_wait=40, retry=10, idle=80, window=4, batch=4, rounds=60,
)  # fmt: skip
_FAULTY: Final = 16 * HEARTBEAT
"""Milliseconds with faults."""
HEALTHY: Final = 40 * HEARTBEAT
"""Milliseconds after them within which an append must be acknowledged, and all may vote."""
_SOON: Final = 12
"""Milliseconds within which those that are struck fail."""
MIXES: Final = (
    (30, 10, 20, 15, 7, 5, 13, 0),
    (20, 4, 20, 15, 4, 2, 35, 0),
    (15, 0, 45, 30, 5, 5, 0, 0),
    (15, 5, 15, 10, 5, 5, 5, 60),
)
"""How often each kind of fault comes in a run, in the order of `Run._fault`."""
_OF_YOUNG: Final = (15, 40, 30, 15, 0, 0, 0, 0)
_YOUNG_LOSS: Final = 0.85
_REACH: Final = 60
"""Milliseconds in which pushes reach a member of a young group once one has."""


class Run(Simulator):
    """One run. `member` makes the members: tests give one with a rule switched off.

    Attributes:
        disk: what members store on.
    """

    disk: ClassVar[type[Disk]] = Disk

    def __init__(self, seed: int, member: Callable[..., GroupMember] = GroupMember) -> None:
        chance = random.Random(seed)
        self._differs = chance.random() < 0.3
        members = chance.choice((3, 5, 5) if self._differs else (3, 3, 3, 5))
        names = [f"n{number}" for number in range(members)]
        timing = replace(_TIMING, batch=chance.choice((1, 4)), window=chance.choice((1, 4)))
        super().__init__(chance, names, timing, member)
        for node in self.nodes.values():
            node.disk = self.disk()
        rate = chance.choice((0.0, 0.0, 0.02, 0.1))
        self.loss, self.doubling = rate, rate / 2
        self.delay = chance.choice((2, 2, 5, 15))
        self.flush = chance.choice((1, 3, 10, 40))
        self.breaks = chance.choice((0.0, 0.0, 0.001, 0.003))
        self._mix = chance.choice(MIXES)
        self._lies = self._mix[-1] > 0
        self._unlucky = chance.choice((0.0, 0.0, 0.3, 0.7))  # leaders that soon fail
        self._unsteady = chance.choice((0.0, 0.0, 0.5))  # members that soon fail after a cut
        self._cutters: set[str] = set()
        self._failing = chance.choice((0.0, 0.0, 0.0, 0.01))  # flushes
        self._lost: set[str] = set()  # members that have lost their disks, and may not vote yet
        self._may_wait = False
        self._reached: set[tuple[int, str]] = set()  # when pushes reached whom
        self._fragile = 0.02 if seed % 4 == 3 else 0.0  # disks that soon fail after a flush
        self._is_faulty = True
        self._is_young = seed % 8 == 5  # few pushes arrive, so that members stay new
        if self._is_young:
            self._differs = self._lies = False
            self._mix = _OF_YOUNG
            self.flush = chance.choice((1, 40, 200))
            self.nodes[chance.choice(self.names)].slow = chance.choice((1, 1, 5))

    def play(self) -> Checks:
        """Play the run; raise `Violation` if something does not hold."""
        chance = self.chance
        for node in self.nodes.values():
            self.at(chance.randint(0, 20), self.start, node)
        if self._differs:
            self._differ()
        every = chance.choice((8, 20, 50))
        for time in range(100, _FAULTY, every):
            self.at(time, self.client, self.nodes[chance.choice(self.names)])
        at = chance.randint(50, 300)
        while at < _FAULTY:
            self.at(at, self._fault)
            at += chance.randint(1, 200)
        self.until(_FAULTY)
        self._heal()
        if self._may_wait:
            self.until(self.now + HEALTHY)
        else:
            self._progress()
            self._all_vote()
            if chance.random() < 0.2:
                self._catch_up_idle()
        self.checks.order()
        return self.checks

    def _differ(self) -> None:
        """Begin with what leaders have left that reached too few to commit anything."""
        chance = self.chance
        disks = [node.disk for node in self.nodes.values()]
        logs: list[list[LedgerEntry]] = [[] for _ in disks]
        quorum = len(disks) // 2 + 1
        last = chance.randint(1, 5)
        for term in range(last):
            # Who has as much as most others have, or more, can be elected. An entry counts in the
            # term of its leader only, where too few get it.
            order = sorted(range(len(disks)), key=lambda at: _reach(logs[at]))
            leader = chance.choice(order[quorum - 1 :])
            for _ in range(chance.randint(1, 4)):
                logs[leader].append(self.new_entry(len(logs[leader]), term))
            for follower in chance.sample(range(len(disks)), chance.randint(0, quorum - 2)):
                mine, its = logs[leader], logs[follower]
                common = sum(one == other for one, other in zip(mine, its, strict=False))
                logs[follower] = mine[: chance.randint(common, len(mine))]
        for disk, log in zip(disks, logs, strict=True):
            self.checks.wrote(tuple(log))
            disk.hold(Save(last, None, is_voter=True), log)

    # ---- faults ---------------------------------------------------------------------------------

    def _fault(self) -> None:
        """Break something, or mend it."""
        chance = self.chance
        node = self.nodes[chance.choice(self.names)]
        kinds: tuple[Callable[[Node], None], ...] = (
            self._crash_for_a_while, self._lose_disk, self._partition, self._mend, self._slow,
            self._hand_over, self._expire, self._lie,
        )  # fmt: skip
        chance.choices(kinds, self._mix)[0](node)

    def _crash_for_a_while(self, node: Node) -> None:
        chance = self.chance
        self.crash(node, is_kill=chance.random() < 0.3)
        self.at(self.now + chance.randint(1, chance.choice((5, 300))), self.start, node)

    def _lose_disk(self, node: Node) -> None:
        """Let a member lose its disk, if fewer than a quorum have then.

        Those that are new have lost nothing. But together with them it can be too many for a
        leader: what was acknowledged is kept, and the group may wait for ever.
        """
        others = {
            each.name
            for each in self.nodes.values()
            if each is not node and (each.disk.saved is None or not each.disk.saved.is_voter)
        }
        self._lost &= others
        most = (len(self.names) - 1) // 2
        if len(self._lost) < most and (len(others) < most or self._is_young):
            self._may_wait |= len(others) >= most
            self._lost.add(node.name)
            self.crash(node)
            node.disk = self.disk()
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

    def _mend(self, _: Node) -> None:
        self.blocked.clear()

    def _slow(self, node: Node) -> None:
        node.slow = self.chance.choice((1, 1, 5, 20))

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
            self.checks.expired = max(self.checks.expired, begin)

    def _lie(self, node: Node) -> None:
        """A peer says to a member what cannot be; see `lies`."""
        chance = self.chance
        liar = chance.choice([name for name in self.names if name != node.name])
        if node.member is None:
            return
        if chance.random() < 0.5:
            number, answer = answered_falsely(chance, node.member)
            self.answered(node, node.life, number, answer)
        else:
            token = (liar, -1, 0)  # nobody waits for the answer
            self.receive(node, token, falsehood(chance, liar, node.member))

    def _strike(self, node: Node, life: int) -> None:
        """Crash a member, or cut it off from all others, or from all but one."""
        if node.member is None or node.life != life or not self._is_faulty:
            return
        fate = self.random()
        if fate < 0.4:
            self._crash_for_a_while(node)
            return
        others = [name for name in self.names if name != node.name]
        if fate < 0.8:
            others.remove(self.chance.choice(others))
        for other in others:
            self.blocked |= {(node.name, other), (other, node.name)}

    def _soon(self, node: Node, what: Callable[[Node, int], None]) -> None:
        after = self.chance.randint(0, self.chance.choice((0, _SOON)))
        self.at(self.now + after, what, node, node.life)

    def _wear_out(self, node: Node, life: int) -> None:
        if node.life == life:
            self._lose_disk(node)

    def _fail(self, node: Node, life: int) -> None:
        if node.life == life:
            self._crash_for_a_while(node)

    def _send(self, source: str, target: str, what: Callable[..., None], *args: Any) -> None:
        if self._is_young and self._is_faulty and type(args[-1]) is Push:
            reached = (self.now // _REACH, target)
            if reached not in self._reached:
                if self.random() < _YOUNG_LOSS:
                    return
                self._reached.add(reached)
        super()._send(source, target, what, *args)

    def receive(self, node: Node, token: object, request: Any) -> None:
        if not self._lies or type(request) is not Push or is_placed(request):
            super().receive(node, token, request)

    def change(self, node: Node, action: Change) -> None:
        super().change(node, action)
        self.checks.began(node.name, node.disk)
        if type(action) is not Write:
            self._cutters.add(node.name)
        if node.name in self._cutters and self.random() < 0.5:  # now, or when it has written since
            self._cutters.remove(node.name)
            if self._is_faulty and self.random() < self._unsteady:
                self._soon(node, self._fail)

    def role_changed(self, node: Node, action: RoleChanged) -> None:
        super().role_changed(node, action)
        if action.role is MemberRole.LEADER and self._is_faulty and self.random() < self._unlucky:
            self._soon(node, self._strike)

    def flushed(self, node: Node, life: int, number: int) -> None:
        if self._failing and node.life == life and self.random() < self._failing:
            self._crash_for_a_while(node)  # a member ends when a flush fails
        else:
            super().flushed(node, life, number)
            if self._fragile and self._is_faulty and self.random() < self._fragile:
                self._soon(node, self._wear_out)  # its acknowledgement may just be under way

    # ---- afterwards -----------------------------------------------------------------------------

    def _heal(self) -> None:
        self._is_faulty = False
        self.blocked.clear()
        self.delay, self.flush = 2, 1
        self.loss = self.doubling = self.breaks = self._failing = 0.0
        for node in self.nodes.values():
            node.slow = 1
            self.start(node)

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
        self.events = [event for event in self.events if event[2] is not client]
        heapify(self.events)

    def _all_vote(self) -> None:
        """Members that have lost their disks may vote again, though nobody appends."""

        def done() -> bool:
            return all(node.member and node.member.is_voter for node in self.nodes.values())

        self.until(self.now + HEALTHY, done)
        if not done():
            raise Violation(f"a member may not vote {HEALTHY} ms after the faults")

    def _catch_up_idle(self) -> None:
        """A follower that loses its disk gets all entries again, though nobody appends."""
        self.until(self.now + HEALTHY, lambda: any(node.leads for node in self.nodes.values()))
        leader = max(
            (node for node in self.nodes.values() if node.leads),
            key=lambda node: node.member.term if node.member else -1,
        )
        others = [node for node in self.nodes.values() if node is not leader]
        self._lose_disk(node := self.chance.choice(others))
        self.until(self.now + HEALTHY, lambda: node.end == leader.end >= 0)
        if node.end != leader.end:
            raise Violation(f"{node.name} has not caught up within {HEALTHY} ms")


def _reach(log: list[LedgerEntry]) -> tuple[int, int]:
    return (log[-1].term, len(log)) if log else (-1, 0)


def run(seed: int, member: Callable[..., GroupMember] = GroupMember) -> Checks:
    """Play the run of a seed."""
    return Run(seed, member).play()
