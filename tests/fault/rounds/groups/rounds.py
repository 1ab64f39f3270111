"""A member of a group fails, or several do, under producers; then all of them live again.

After each round, what was acknowledged until then is in the logs of all three members at the same
place, once, and all before it is the same, byte for byte. In the end, so are the whole logs, and
what each member gives to consumers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rmqstore_spark.layout.dledger import ENTRY_HEADER_SIZE
from tests.broker.clients.real_client import RealClient
from tests.engine.group.stores import FAST, bodies_in, problems_of, text_of
from tests.fault.claims import Outcome
from tests.fault.power import PoweredDisk
from tests.fault.rounds.driver import Scene
from tests.fault.rounds.groups.load import BATCHES, JavaClient, Load, texts_of
from tests.fault.rounds.groups.offsets import odd_offsets
from tests.fault.rounds.groups.parted import Link, PartedGroup
from tests.namesrv.serving import NamesrvProcess
from tests.rocketmq.processes import RocketMq
from tests.support.waiting import eventually
from tools.java import find_java

_PATIENCE_S: Final = 180.0
_SOME: Final = 20
"""So many more messages are acknowledged while a member is away, and when it is back."""
_LEADER: Final = 0.6
"""The share of the rounds in which the leader fails."""
_LONGEST_S: Final = 5.0
"""Of a fault under which the others need not agree."""
_DISK: Final = 1 << 30
_QUEUES: Final = range(4)
_SENT: Final = ("message-", "java-")
"""How the texts begin of what producers send, each once."""


@dataclass(kw_only=True)
class GroupRounds(Scene):
    """Three members, on one group for all rounds of the scene.

    Attributes:
        ours: the ids of ours; the others are brokers of RocketMQ.
        loses_power: the fault is that all members lose their power at once.
    """

    ours: tuple[str, ...]
    loses_power: bool = False

    def begin(self) -> None:
        home = os.environ.get("ROCKETMQ_HOME")
        rocketmq = RocketMq(Path(home), find_java(), self.folder) if home else None
        server = self.ends.enter_context(NamesrvProcess(self.folder))
        stores = self.folder
        if self.loses_power:
            self._disk = self.ends.enter_context(PoweredDisk(self.folder, _DISK))
            stores = self._disk.path
        settings: dict[str, Any] = dict(FAST) if len(self.ours) == 3 else {}
        group = self._group = PartedGroup(
            rocketmq, server.address, stores, self.ours, serving=True,
            # Topics are not in the log: all make the same ones.
            defaultTopicQueueNums=len(_QUEUES), **settings,
        )  # fmt: skip
        self.ends.callback(group.close)
        eventually(lambda: all(one.may_vote for one in group.ours.values()), _PATIENCE_S)
        self._leader()
        java = None
        if rocketmq is not None:
            command = rocketmq.application(server.address, "orders", "0", "--once")
            # It finds the topic when a message of others has made it.
            group.send(["first"])
            java = JavaClient(lambda: RealClient(self.folder, *command, stderr=subprocess.DEVNULL))
            self.ends.callback(java.close)
        addresses = [f"127.0.0.1:{group.ports[me]}" for me in group.members]
        endpoints = [f"rmq://127.0.0.1:{group.ports[me]}" for me in group.ours]
        self._load = Load(addresses, endpoints, java)
        self.ends.callback(self._load.close)
        self.told = [self._load]
        self._agreed: list[bytes] = []  # the entries that all members have, as far as compared
        self._found: Counter[str] = Counter()
        self._go_on()

    # ---- a round ---------------------------------------------------------------------------------

    def round(self, number: int, seed: int) -> bool:
        """One fault, and all is well again."""
        draw, group = self.drawn, self._group
        leader = self._leader()
        others = [me for me in group.members if me != leader]
        victim = leader if draw.random() < _LEADER else draw.choice(others)
        faults: tuple[Callable[[str], None], ...] = (
            self.killed, self.stopped, self.cut_off, self.not_heard, self.deaf,
            self.one_link_cut, self.all_killed,
        )  # fmt: skip
        fault = draw.choices(faults, (35, 20, 20, 7, 7, 6, 5))[0]
        if self.loses_power:
            fault = self.power_cut
        kinds = {me: "ours" if me in group.ours else "RocketMQ's" for me in group.members}
        role = "leader" if victim == leader else f"follower of {kinds[leader]}"
        self.done.append(f"{kinds[victim]} {victim}, {role}, {fault.__name__}")
        fault(victim)
        self._go_on()
        outcome = self._compare()
        self.tally.add(outcome)
        outcome.require_none()
        return True

    def killed(self, victim: str) -> None:
        """Kill it; the others continue; it is started again."""
        self._group.kill(victim)
        self._go_on()
        self._group.start(victim)

    def stopped(self, victim: str) -> None:
        """Stop its process; the others continue; it continues as if nothing had happened."""
        self._group.signal(victim, signal.SIGSTOP)
        try:
            self._go_on()
        finally:
            self._group.signal(victim, signal.SIGCONT)

    def cut_off(self, victim: str) -> None:
        """Neither it nor the others reach each other; clients reach all of them."""
        self._part([*self._links_from(victim), *self._links_to(victim)], until_others_continue=True)

    def not_heard(self, victim: str) -> None:
        """What it asks is not answered; it hears what others ask."""
        self._part(self._links_from(victim))

    def deaf(self, victim: str) -> None:
        """The others get no answer of it; it gets theirs."""
        self._part(self._links_to(victim))

    def one_link_cut(self, victim: str) -> None:
        """It and one of the others do not reach each other; the third reaches both."""
        other = self.drawn.choice([target for _, target in self._links_from(victim)])
        self._part([(victim, other), (other, victim)])

    def all_killed(self, victim: str) -> None:
        """Kill all; what is in the page cache stays. They start one after the other."""
        order = [victim, *(target for _, target in self._links_from(victim))]
        for me in order:
            self._group.kill(me)
        for me in order:
            self._group.start(me)

    def power_cut(self, victim: str) -> None:
        """All stand still at the same moment, and what they had not flushed is gone."""
        order = [victim, *(target for _, target in self._links_from(victim))]
        for me in order:
            self._group.signal(me, signal.SIGSTOP)
        self._disk.lose_power()
        for me in order:
            self._group.kill(me)
        self._disk.start_again()
        for me in order:
            self._group.start(me)

    def _links_from(self, me: str) -> list[Link]:
        return [(me, other) for other in self._group.members if other != me]

    def _links_to(self, me: str) -> list[Link]:
        return [(other, me) for other in self._group.members if other != me]

    def _part(self, links: Iterable[Link], *, until_others_continue: bool = False) -> None:
        """Part members for a while."""
        self._group.part(links)
        try:
            if until_others_continue:
                self._go_on()
            else:
                time.sleep(self.drawn.uniform(0, _LONGEST_S))
        finally:
            self._group.mend(drops=self.drawn.random() < 0.5)

    # ---- what must hold --------------------------------------------------------------------------

    def _leader(self) -> str:
        return str(eventually(self._group.client.leader, _PATIENCE_S))

    def _go_on(self) -> None:
        """Wait until some more messages were acknowledged."""
        before = len(self._load.texts)

        def is_going_on() -> bool:
            self._load.require_running()
            return len(self._load.texts) >= before + _SOME

        eventually(is_going_on, _PATIENCE_S)

    def _compare(self) -> Outcome:
        """Wait until all logs have what was acknowledged until now, and take that as compared."""
        group, texts = self._group, [text for text in self._load.texts if text not in self._found]
        index, position = len(self._agreed), _end_of(self._agreed)

        def agreed() -> tuple[list[bytes]] | None:
            first, *others = [group.entries(me, index, position) for me in group.members]
            places = {body_of(entry): at for at, entry in enumerate(first)}
            if not all(text in places for text in texts):
                return None
            end = max((places[text] + 1 for text in texts), default=0)
            return (first[:end],) if all(log[:end] == first[:end] for log in others) else None

        try:
            (same,) = eventually(agreed, _PATIENCE_S)
        except AssertionError:
            held = {
                me: set(map(body_of, group.entries(me, index, position))) for me in group.members
            }
            lost = sum(sum(text in each for each in held.values()) < 2 for text in texts)
            lacks = {me: sum(text not in each for text in texts) for me, each in held.items()}
            return Outcome(lost, 0, (f"the logs differ; messages that members lack: {lacks}",))
        self._agreed += same
        self._found.update(map(body_of, same))
        return Outcome(0, _copies(self._found), ())

    def finish(self) -> Outcome:
        """All logs and queues are the same, and have what was acknowledged; consumers got it."""
        group, load = self._group, self._load
        load.end()
        outcomes = [self._compare()]
        assert group.have_all(len(self._agreed))[: len(self._agreed)] == self._agreed
        texts = load.texts
        ends = eventually(lambda: self._common_ends(len(texts)), _PATIENCE_S)
        given = [self._given(me, ends) for me in group.members]
        others = [f"{me} gives consumers something else" for me, each in
                  zip(group.members, given, strict=True) if each != given[0]]  # fmt: skip
        odd = odd_offsets(self._agreed, group.ports)
        others += [str(each) for each in odd if each.text.startswith(_SENT)]
        counts = Counter(text for queue in given[0] for text in queue)
        lost = sum(text not in counts for text in texts)
        outcomes.append(Outcome(lost, _copies(counts), tuple(others)))
        if load.java is not None:
            missing = load.java.missing(texts)
            outcomes.append(
                Outcome(0, 0, tuple(f"Java did not consume {text[:20]}" for text in missing))
            )
        for store in group.ours.values():
            store.stop()
            outcomes.append(self._batches_of(store.store))
        lost, doubled = sum(each.lost for each in outcomes), sum(each.doubled for each in outcomes)
        return Outcome(lost, doubled, tuple(text for each in outcomes for text in each.others))

    def _common_ends(self, least: int) -> list[int] | None:
        """Where the queues end, once they do so at all members."""
        first, *others = [
            [max(self._group.max_offset(me, queue), 0) for queue in _QUEUES]
            for me in self._group.members
        ]
        return first if sum(first) >= least and all(each == first for each in others) else None

    def _given(self, me: str, ends: list[int]) -> list[list[str]]:
        """The texts of each queue, as a member gives them to consumers."""
        return [
            [text_of(record) for record in self._group.pulled(me, end, queue)]
            for queue, end in zip(_QUEUES, ends, strict=True)
        ]

    def _batches_of(self, store: Path) -> Outcome:
        """Each row of a batch that was committed is there once; of no batch there is a part."""
        counts = Counter(bodies_in(store, BATCHES)) if self._load.batches.committed else Counter()
        rows = [row for batch in range(self._load.batches.committed) for row in texts_of(batch)]
        torn = len(counts) % len(texts_of(0))
        others = [f"{torn} rows of a batch in {store}"] * bool(torn)
        others += [f"{store}: {problem}" for problem in problems_of(store)]
        doubled = sum(count - 1 for count in counts.values())
        return Outcome(sum(not counts[row] for row in rows), doubled, tuple(others))


def body_of(entry: bytes) -> str:
    """The text of the message that an entry has."""
    return text_of(entry[ENTRY_HEADER_SIZE:])


def _end_of(entries: list[bytes]) -> int:
    """The position behind the last entry."""
    if not entries:
        return 0
    return int.from_bytes(entries[-1][24:32], "big") + len(entries[-1])


def _copies(counts: Counter[str]) -> int:
    """How many messages there are more than once, but for rows of batches in a log."""
    return sum(count - 1 for text, count in counts.items() if text.startswith(_SENT))
