"""Rounds in which members of a group are killed or stopped while producers and batches continue.

GROUP_ROUNDS=50 pytest tests/engine/group/test_rounds.py
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rmqstore_spark.base.types import CommitRequest, WriterId
from rmqstore_spark.client import StoreClient
from rmqstore_spark.errors import RmqStoreError
from tests.engine.group.stores import StoreGroup, StoreProcess, bodies_in, group_of, problems_of
from tests.support.processes.serving import block_of
from tests.support.waiting import eventually

ROUNDS = int(os.environ.get("GROUP_ROUNDS", "4"))
PRODUCERS = 3
ROWS = 500


class Load:
    """Producers, and a writer of batches, until `end`.

    Attributes:
        acknowledged: the texts of messages that were acknowledged; each is sent once.
        committed: the numbers of batches that were committed.
    """

    def __init__(self, group: StoreGroup) -> None:
        self._group = group
        self._over = threading.Event()
        self.acknowledged: list[str] = []
        self.committed: list[int] = []
        self._pool = ThreadPoolExecutor(PRODUCERS + 1)
        self._work = [self._pool.submit(self._send, number) for number in range(PRODUCERS)]
        self._work.append(self._pool.submit(self._commit))

    def end(self) -> None:
        """End all, and raise what failed."""
        self._over.set()
        for work in self._work:
            work.result()
        self._pool.shutdown()

    def _send(self, producer: int) -> None:
        number = 0
        while not self._over.is_set():
            store = self._group.leader()
            for _ in range(50):
                text = f"message {producer} {number} {'x' * (number * 37 % 2000)}"
                number += 1
                if not store.send(text, queue=producer):
                    break
                self.acknowledged.append(text)

    def _commit(self) -> None:
        number = 0
        while not self._over.is_set():
            rows = [b"row %d %d" % (number, row) for row in range(ROWS)]
            try:
                with StoreClient(self._group.leader().endpoint, retries=0) as client:
                    with client.stage_stream() as stream:
                        stream.send(block_of(rows, queue_ids=[3] * ROWS))
                        info = stream.finish()
                    client.commit(CommitRequest(WriterId.of_batch("rounds", number), (info,)))
            except RmqStoreError:
                continue  # the same batch again
            self.committed.append(number)
            number += 1


def disturb(group: StoreGroup, chance: random.Random) -> None:
    """Kill or stop a member, mostly the leader, and bring it back when another leads or it did."""
    leader = group.leader()
    victim = leader if chance.random() < 0.7 else chance.choice(list(group.stores.values()))
    if chance.random() < 0.6:
        victim.kill()
        group.leader()
        victim.start()
    else:
        victim.process.send_signal(signal.SIGSTOP)
        try:
            others = [store for store in group.stores.values() if store is not victim]
            eventually(lambda: any(is_leading(store) for store in others), 60)
        finally:
            victim.process.send_signal(signal.SIGCONT)


def is_leading(store: StoreProcess) -> bool:
    """Whether a store takes messages."""
    return bool(store.stats().get("state") == "RUNNING")


@pytest.mark.fault
@pytest.mark.slow
def test_what_is_acknowledged_is_there_once_on_every_member(tmp_path: Path) -> None:
    chance = random.Random(os.environ.get("GROUP_SEED"))
    with group_of(tmp_path) as group:
        group.send("first")
        load = Load(group)
        for _ in range(ROUNDS):
            begin = len(load.acknowledged)
            disturb(group, chance)
            eventually(lambda begin=begin: len(load.acknowledged) > begin + 100, 60)
        load.end()
        group.send("last")
        group.await_all()
        group.stop()
    assert load.committed
    for store in group.stores.values():
        counts = Counter(bodies_in(store.store))
        assert [text for text in load.acknowledged if counts[text] != 1] == []
        assert max(counts.values()) == 1
        for number in load.committed:
            assert all(counts[f"row {number} {row}"] == 1 for row in range(ROWS))
        assert not problems_of(store.store)
    totals = f"{ROUNDS} rounds, {len(load.acknowledged)} messages, {len(load.committed)} batches"
    sys.stdout.write(f"{totals}\n")
