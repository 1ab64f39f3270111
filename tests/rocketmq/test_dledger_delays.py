"""Delayed messages of a group in which ours and a broker of RocketMQ lead in turn."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from tests.engine.group.stores import StoreProcess, problems_of, text_of
from tests.rocketmq.groups import PATIENCE, Group
from tests.rocketmq.processes import RocketMq
from tests.support.waiting import eventually

LEVELS = "1s 20s 22s"
"""The second and the third are long enough for another member to lead before."""


@pytest.fixture
def group(rocketmq: RocketMq, name_server: str, tmp_path: Path) -> Iterator[Group]:
    made = Group(
        rocketmq, name_server, tmp_path, ("n0",), serving=True, messageDelayLevel=LEVELS
    )  # fmt: skip
    try:
        eventually(lambda: made.ours["n0"].may_vote, PATIENCE)
        yield made
    finally:
        made.close()


class Sent:
    """Delayed messages that a group has acknowledged.

    Attributes:
        texts: their bodies.
    """

    def __init__(self, group: Group, folder: Path) -> None:
        self._group = group
        self._folder = folder
        self.texts: list[str] = []

    def send(self, name: str, many: int, *levels: int) -> None:
        """Send so many messages for each level."""
        for level in levels:
            names = [f"{name} {level} {number}" for number in range(many)]
            self.texts += [self._acknowledged(each, level) for each in names]

    def _acknowledged(self, name: str, level: int) -> str:
        """Send a message until it is acknowledged, each time as another one."""
        attempts = count()

        def one() -> str:
            body = f"{name} {next(attempts)}"
            key = f"UNIQ_KEY\x01{body.replace(' ', '-')}"
            properties = f"{key}\x02DELAY\x01{level}\x02WAIT\x01true"
            return body if self._group.sends(body, properties=properties) else ""

        return str(eventually(one, PATIENCE))

    def await_all(self) -> None:
        """Wait until all members have what was sent, once; what comes twice comes before."""
        for me in self._group.members:
            eventually(lambda me=me: set(self.texts) <= self._found(me).keys(), PATIENCE)
            assert max(self._found(me).values()) == 1, me

    def _found(self, me: str) -> Counter[str]:
        with suppress(AssertionError):  # a broker that follows learns of the topic later
            return Counter(map(text_of, self._group.pulled(me, self._group.max_offset(me))))
        return Counter()

    def await_progress(self) -> None:
        """Wait until the brokers have copied what was delivered, which they do every 10 s."""
        for me in self._group.theirs:
            eventually(lambda me=me: self._progress(me) >= len(self.texts), PATIENCE)

    def _progress(self, me: str) -> int:
        file = self._folder / me / "config" / "delayOffset.json"
        table = file.read_text().partition("offsetTable")[2].partition("}")[0]
        return sum(map(int, re.findall(r":\s*([0-9]+)", table)))


def test_each_is_delivered_once_whoever_leads_in_between(group: Group, tmp_path: Path) -> None:
    ours = group.ours["n0"]
    assert isinstance(ours, StoreProcess)
    sent = Sent(group, tmp_path)
    sent.send("first", 2, 1)  # a leader hands over none but what it has
    sent.await_all()
    group.hand_over("n0")
    sent.send("ours", 3, 1)
    sent.await_all()
    for number in range(2):
        sent.await_progress()
        sent.send(f"theirs {number}", 5, 2, 3)
        group.hand_over("n1")
        sent.await_all()
        before = ours.stats()["delayedDelivered"]
        sent.send(f"last of theirs {number}", 2, 1)
        sent.await_all()
        group.hand_over("n0")
        if number:
            ours.kill()
            ours.start()
            eventually(lambda: ours.may_vote, PATIENCE)
            group.hand_over("n0")
            before = 0
        sent.send(f"ours again {number}", 1, 1, 2, 3)
        sent.await_all()
        eventually(lambda n=before: ours.stats()["delayedDelivered"] >= n + 3, PATIENCE)
    ours.stop()
    assert not problems_of(ours.store, delay_levels=LEVELS)
