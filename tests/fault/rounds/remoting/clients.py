"""A client, its broker or its name server is killed, at random and in each phase."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.fault.claims import Outcome
from tests.fault.rounds.driver import Scene
from tests.fault.rounds.remoting.cluster import Cluster
from tests.fault.rounds.remoting.consuming import OrderlyLives
from tests.fault.rounds.remoting.lives import ClientLives, TalkingLives
from tests.support.waiting import eventually

_MOST: Final = 9
"""So often, at the most, a store process gets to a failpoint before it dies there."""
_LONGEST_S: Final = 1.0
_REACHED_S: Final = 8.0
"""Longer than the 5 s after which clients report their progress."""
_PATIENCE_S: Final = 180.0
_LIVES_OF_LOCKS: Final = 20


@dataclass(kw_only=True)
class KilledClients(Scene):
    """After each fault, all live again: the client must send, and consume what was acknowledged.

    Attributes:
        make: the client of a cluster; its class says what must hold.
    """

    make: Callable[[Cluster], ClientLives]

    def begin(self) -> None:
        self._cluster = Cluster(self.folder)
        self.ends.enter_context(self._cluster.ends)
        lives = self._lives = self.make(self._cluster)
        self._broker = self._cluster.broker
        self.told = [lives]
        self._cluster.start(lives.topic)
        self.ends.callback(lives.kill)
        faults = [
            self.broker, self.broker_at_a_place, self.client, self.name_server, self.everything,
            self.broker_and_client, self.no_name_server_at_the_start,
        ]  # fmt: skip
        if isinstance(lives, TalkingLives):
            self._talking = lives
            faults += [
                self.client_before_the_answer, self.client_holding, self.broker_while_client_holds,
                self.broker_as_client_continues,
            ]  # fmt: skip
        self._faults = self.drawn.sample(faults, len(faults))
        self._send_more()

    def round(self, number: int, seed: int) -> bool:
        """One of the faults, each in its turn."""
        fault = self._faults[self.tally.rounds % len(self._faults)]
        self.done.append(fault.__name__)
        fault()
        self._send_more()
        return True

    def finish(self) -> Outcome:
        """All that was acknowledged is consumed or ended."""
        lives = self._lives
        if isinstance(lives, OrderlyLives) and self.tally.rounds == _LIVES_OF_LOCKS:
            # It gets the queues when the locks of the one before are too old: within 80 s.
            lives.kill()
            lives.follow("second")
            self._send_more()
        eventually(lambda: lives.is_complete(self.drawn), _PATIENCE_S)
        lives.kill()
        self._broker.close()
        return lives.compare()

    # ---- faults ----------------------------------------------------------------------------------

    def broker(self) -> None:
        """While messages are sent and consumed."""
        self._kill("store")

    def client(self) -> None:
        """While it sends and consumes."""
        self._kill("client")

    def name_server(self) -> None:
        """It forgets the broker, which tells it again."""
        self._kill("name server")

    def broker_and_client(self) -> None:
        """Both; the next store process may die as it starts."""
        self._kill("store, client", is_dying=self.drawn.random() < 0.5)

    def everything(self) -> None:
        """All at once; the next store process may die as it starts."""
        self._kill("store, client, name server", is_dying=self.drawn.random() < 0.5)

    def broker_at_a_place(self) -> None:
        """The store process dies in the midst of something, or soon after its start."""
        self._kill("store", is_dying=True)

    def client_before_the_answer(self) -> None:
        """The client is gone when the store process has its message and would answer."""
        self._broker.kill()
        place = self.drawn.choice(self._talking.answering)
        self._broker.start(f"{place}:{self.drawn.randint(1, _MOST)}:stop").ready()
        eventually(self._is_stopped_under_messages, _PATIENCE_S)
        self._lives.kill()
        assert self._broker.process is not None
        self._broker.process.signal(signal.SIGCONT)

    def client_holding(self) -> None:
        """The client stands still with a message, and dies."""
        self._hold()
        self._lives.kill()

    def broker_while_client_holds(self) -> None:
        """The client stands still with a message, and continues with the next store process."""
        self._hold()
        self._broker.kill()
        self._broker.keep()
        self._talking.release()

    def broker_as_client_continues(self) -> None:
        """The store process dies at what the client does after it stood still."""
        eventually(self._talking.is_idle, _PATIENCE_S)
        self._hold()
        self._broker.kill()
        self._die_at(self._talking.releasing, 1, self._talking.release)
        self._broker.keep()

    def no_name_server_at_the_start(self) -> None:
        """The client starts when nobody can tell it where the broker is."""
        self._cluster.kill_name_server()
        self._lives.kill()
        self._lives.send(self.drawn)
        time.sleep(self.drawn.uniform(0, _LONGEST_S))
        self._cluster.start_name_server()

    def _kill(self, what: str, *, is_dying: bool = False) -> None:
        """Kill some of them, let the next store process die somewhere, and start them again."""
        self._lives.send(self.drawn)
        time.sleep(self.drawn.uniform(0, _LONGEST_S))
        if "store" in what:
            self._broker.kill()
        if "client" in what:
            self._lives.kill()
        if "name server" in what:
            self._cluster.kill_name_server()
            self._cluster.start_name_server()
        if is_dying:
            self._die_at(self._lives.dying, _MOST, self._let_it_send)
        self._broker.keep()

    def _die_at(self, places: tuple[str, ...], most: int, cause: Callable[[], object]) -> None:
        place = self.drawn.choice(places)
        times = 1 if place.startswith("recovery.") else self.drawn.randint(1, most)
        self.done.append(f"{place}:{times}")
        self._broker.die_at(self.done[-1], _REACHED_S, cause)

    def _hold(self) -> None:
        eventually(lambda: self._talking.is_holding(self.drawn), _PATIENCE_S)

    def _let_it_send(self) -> None:
        self._lives.is_going_on(self._lives.acknowledged, self.drawn)

    def _is_stopped_under_messages(self) -> bool:
        self._let_it_send()
        return self._cluster.is_stopped()

    def _send_more(self) -> None:
        """Let it send, and be answered."""
        before = self._lives.acknowledged
        eventually(lambda: self._lives.is_going_on(before, self.drawn), _PATIENCE_S)
        assert not self._lives.problems, self._lives.problems
