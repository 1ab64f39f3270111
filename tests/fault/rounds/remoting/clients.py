"""Rounds that kill a client, its broker or its name server, at random and in each phase."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.fault.rounds.remoting.cluster import Cluster
from tests.fault.rounds.remoting.consuming import OrderlyLives
from tests.fault.rounds.remoting.lives import Lives
from tests.fault.rounds.writer import Tally
from tests.support.waiting import eventually

__all__ = ["client_kills"]

_ROUNDS_PER_STORE: Final = 20
_MOST: Final = 9
"""So often, at the most, a store process gets to a failpoint before it dies there."""
_LONGEST_S: Final = 1.0
_REACHED_S: Final = 8.0
"""Longer than the 5 s after which clients report their progress."""
_PATIENCE_S: Final = 180.0


class _Rounds:
    """The faults. At the end of each, all live again.

    Args:
        cluster: the broker and the name server.
        lives: the client.
        drawn: what happens when.
    """

    def __init__(self, cluster: Cluster, lives: Lives, drawn: random.Random) -> None:
        self._cluster = cluster
        self._lives = lives
        self._drawn = drawn

    def all(self) -> list[Callable[[], None]]:
        """All kinds of faults, in random order."""
        faults = [
            self.store, self.store_at_a_place, self.client, self.name_server, self.everything,
            self.client_before_the_answer, self.client_holding, self.store_while_client_holds,
            self.store_as_client_continues, self.no_name_server_at_the_start,
        ]  # fmt: skip
        self._drawn.shuffle(faults)
        return faults

    def store(self) -> None:
        """While messages are sent and consumed."""
        self._work()
        self._cluster.kill_store()
        self._cluster.keep_store()

    def store_at_a_place(self) -> None:
        """The store process dies in the midst of something, or soon after its start."""
        self._work()
        self._cluster.kill_store()
        self._die_at(self._lives.dying, _MOST, self._let_it_send)

    def client(self) -> None:
        """While it sends and consumes."""
        self._work()
        self._lives.kill()

    def name_server(self) -> None:
        """It forgets the broker, which tells it again."""
        self._work()
        self._cluster.kill_name_server()
        self._cluster.start_name_server()

    def everything(self) -> None:
        """All at once."""
        self._work()
        self._cluster.kill_store()
        self._lives.kill()
        self._cluster.kill_name_server()
        self._cluster.start_name_server()
        self._cluster.keep_store()

    def client_before_the_answer(self) -> None:
        """The client is gone when the store process has its message and would answer."""
        self._cluster.kill_store()
        place = self._drawn.choice(self._lives.answering)
        self._cluster.start_store(f"{place}:{self._drawn.randint(1, _MOST)}:stop").ready()
        eventually(self._is_stopped_under_messages, _PATIENCE_S)
        self._lives.kill()
        self._cluster.resume()

    def client_holding(self) -> None:
        """The client stands still with a message, and dies."""
        eventually(lambda: self._lives.is_holding(self._drawn), _PATIENCE_S)
        self._lives.kill()

    def store_while_client_holds(self) -> None:
        """The client stands still with a message, and continues with the next store process."""
        eventually(lambda: self._lives.is_holding(self._drawn), _PATIENCE_S)
        self._cluster.kill_store()
        self._cluster.keep_store()
        self._lives.release()

    def store_as_client_continues(self) -> None:
        """The store process dies at what the client does after it stood still."""
        eventually(self._lives.is_idle, _PATIENCE_S)
        eventually(lambda: self._lives.is_holding(self._drawn), _PATIENCE_S)
        self._cluster.kill_store()
        self._die_at(self._lives.releasing, 1, self._lives.release)

    def no_name_server_at_the_start(self) -> None:
        """The client starts when nobody can tell it where the broker is."""
        self._cluster.kill_name_server()
        self._lives.kill()
        self._lives.send(self._drawn)
        time.sleep(self._drawn.uniform(0, _LONGEST_S))
        self._cluster.start_name_server()

    def _work(self) -> None:
        self._lives.send(self._drawn)
        time.sleep(self._drawn.uniform(0, _LONGEST_S))

    def _die_at(self, places: tuple[str, ...], most: int, cause: Callable[[], object]) -> None:
        """Let the next store process die at a place, if it gets there soon; start another."""
        place = self._drawn.choice(places)
        times = 1 if place.startswith("recovery.") else self._drawn.randint(1, most)
        process = self._cluster.start_store(f"{place}:{times}")
        eventually(process.is_settled, _PATIENCE_S)
        deadline = time.monotonic() + _REACHED_S
        while process.process.poll() is None and time.monotonic() < deadline:
            cause()
            time.sleep(0.02)
        self._cluster.kill_store()
        self._cluster.keep_store()

    def _let_it_send(self) -> None:
        self._lives.is_going_on(self._lives.acknowledged, self._drawn)

    def _is_stopped_under_messages(self) -> bool:
        self._let_it_send()
        return self._cluster.is_stopped()


def client_kills(
    folder: Path, rounds: int, make: Callable[[Cluster], Lives], *, first_seed: int = 0
) -> Tally:
    """Kill a client, its broker or its name server, while it sends and consumes.

    Args:
        folder: for the stores.
        rounds: how often.
        make: the client of a cluster.
        first_seed: of what is done.
    """
    tally = Tally()
    for begin in range(0, rounds, _ROUNDS_PER_STORE):
        count, seed = min(_ROUNDS_PER_STORE, rounds - begin), first_seed + begin
        cluster = Cluster(folder / f"clients-{begin}")
        lives, done = make(cluster), [f"seed {seed}"]
        try:
            _rounds(cluster, lives, count, seed, done)
        except BaseException:
            sys.stderr.write(", ".join(done) + "\n")
            raise
        outcome = lives.compare()
        tally.add(outcome)
        if outcome.lost or outcome.doubled or outcome.others:
            tally.others += (", ".join(done),)
        tally.rounds += count
        tally.faults += count
        tally.acknowledged += lives.acknowledged
    return tally


def _rounds(cluster: Cluster, lives: Lives, count: int, seed: int, done: list[str]) -> None:
    drawn = random.Random(seed)
    faults = _Rounds(cluster, lives, drawn)
    with cluster:
        cluster.make_topic(lives.topic)
        try:
            _send_more(lives, drawn)
            order = faults.all()
            for turn in range(count):
                fault = order[turn % len(order)]
                done.append(fault.__name__)
                fault()
                _send_more(lives, drawn)
            if isinstance(lives, OrderlyLives) and count == _ROUNDS_PER_STORE:
                # It gets the queues when the locks of the one before are too old: within 80 s.
                lives.kill()
                lives.follow("second")
                _send_more(lives, drawn)
            eventually(lives.is_complete, _PATIENCE_S)
        finally:
            lives.kill()
        cluster.close()


def _send_more(lives: Lives, drawn: random.Random) -> None:
    """Let it send, and be answered."""
    before = lives.acknowledged
    eventually(lambda: lives.is_going_on(before, drawn), _PATIENCE_S)
    assert not lives.problems, lives.problems
