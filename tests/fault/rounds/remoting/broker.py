"""A store process as a broker, its name server and applications, killed in any phase."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from rmqstore_spark.engine.failpoints import NAMES
from rmqstore_spark.reader.store import Store
from tests.fault.claims import CLIENT, Claims, compare_all
from tests.fault.messages import read_numbers
from tests.fault.rounds.remoting.application import TOPIC
from tests.fault.rounds.remoting.cluster import Cluster
from tests.fault.rounds.writer import Tally
from tests.support.waiting import eventually

__all__ = ["Application", "broker_kills", "vanished"]

_SENDERS: Final = 3
_ROUNDS_PER_STORE: Final = 20
_PLACES: Final = tuple(
    name
    for name in NAMES
    if name.startswith(("put.", "roll.", "flush.", "recovery.", "queues.", "consumerOffset."))
)
_AT_A_PLACE: Final = 0.4
_LONGEST_S: Final = 1.0
_REACHED_S: Final = 3.0
_PATIENCE_S: Final = 180.0


class Application:
    """The process with the senders and the consumer, over all its lives.

    Args:
        name_server: whom it asks for the broker.

    Attributes:
        senders: what each of them was told.
        got: the number at each place that was consumed, by queue and offset.
        problems: what the consumer saw wrong.
    """

    def __init__(self, name_server: str) -> None:
        self.senders = [Claims(sender * CLIENT) for sender in range(_SENDERS)]
        self.got: dict[tuple[int, int], int] = {}
        self.problems: list[str] = []
        self._name_server = name_server
        self._next: dict[int, int] = {}
        self._is_new: set[int] = set()
        self._process: subprocess.Popen[str] | None = None
        self._reading: threading.Thread | None = None

    def start(self, seed: int) -> None:
        """Start it where the one before ended."""
        numbers = [str(claims.next_number) for claims in self.senders]
        module = "tests.fault.rounds.remoting.application"
        self._is_new = set(range(_SENDERS))
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, self._name_server, str(seed), *numbers],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reading = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reading.start()

    def kill(self) -> None:
        """Kill it, and read what it had said."""
        if self._process is None or self._reading is None:
            return
        self._process.kill()
        code = self._process.wait()
        self._reading.join()
        if code != -signal.SIGKILL:
            self.problems.append(f"the application ended with {code}")
        self._process = None

    def is_going_on(self, acknowledged: int) -> bool:
        """Whether more has been acknowledged."""
        return self.acknowledged > acknowledged

    @property
    def acknowledged(self) -> int:
        """How many messages were."""
        return sum(claims.acknowledged for claims in self.senders)

    def told(self) -> set[int]:
        """The messages that have been acknowledged until now."""
        return {
            number
            for claims in self.senders
            for operation in claims.operations[:]
            if operation.done
            for number in operation.numbers
        }

    def has_got(self, messages: set[int]) -> bool:
        """Whether the consumer has seen some messages."""
        return messages <= set(self.got.copy().values())

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self.take(line)

    def take(self, line: str) -> None:
        """Note a line of the process."""
        what, *words = line.split()
        if what == "got":
            self._consumed(*map(int, words))
        elif what in ("begin", "done"):
            first, count = map(int, words)
            claims = self.senders[first // CLIENT]
            if what == "begin":
                claims.begin("put", first, count)
            else:
                claims.done("put", first)

    def _consumed(self, queue: int, offset: int, number: int) -> None:
        """A queue is consumed in its order; a new consumer may repeat, but leaves nothing out."""
        expected = self._next.get(queue, 0)
        if offset > expected or (offset < expected and queue not in self._is_new):
            self.problems.append(f"queue {queue}: consumed {offset} where {expected} was next")
        if self.got.setdefault((queue, offset), number) != number:
            self.problems.append(f"queue {queue}: another message at {offset} than before")
        self._is_new.discard(queue)
        self._next[queue] = offset + 1


def _kill(cluster: Cluster, application: Application, what: str, drawn: random.Random) -> None:
    """Kill some of them, and start them again."""
    if what in ("store", "store and application", "all"):
        cluster.kill_store()
    if what in ("application", "store and application", "all"):
        application.kill()
    if what in ("name server", "all"):
        cluster.kill_name_server()
        cluster.start_name_server()
    if what != "name server" and drawn.random() < _AT_A_PLACE:
        cluster.kill_store()
        place = f"{drawn.choice(_PLACES)}:{drawn.randint(1, 9)}"
        with suppress(subprocess.TimeoutExpired):
            cluster.start_store(place).process.wait(_REACHED_S)
        cluster.kill_store()
    cluster.keep_store()
    if what in ("application", "store and application", "all"):
        application.start(drawn.randrange(1 << 30))


def broker_kills(folder: Path, rounds: int, *, first_seed: int = 0) -> Tally:
    """Kill store process, name server or application while messages are sent and consumed.

    Args:
        folder: for the stores.
        rounds: how often.
        first_seed: of what is done.
    """
    tally = Tally()
    for begin in range(0, rounds, _ROUNDS_PER_STORE):
        count = min(_ROUNDS_PER_STORE, rounds - begin)
        with Cluster(folder / f"broker-{begin}") as cluster:
            cluster.make_topic(TOPIC)
            application = Application(cluster.name_server)
            application.start(0)
            try:
                _rounds(cluster, application, count, random.Random(first_seed + begin))
            finally:
                application.kill()
            cluster.close()
        tally.add(compare_all(cluster.store, application.senders))
        tally.others += tuple(application.problems + vanished(cluster.store, application))
        tally.rounds += count
        tally.faults += count
        tally.acknowledged += application.acknowledged
    return tally


def _rounds(cluster: Cluster, application: Application, count: int, drawn: random.Random) -> None:
    _wait(lambda: application.is_going_on(0), application)
    for _ in range(count):
        time.sleep(drawn.uniform(0, _LONGEST_S))
        what = ("store", "store", "application", "name server", "store and application", "all")
        _kill(cluster, application, drawn.choice(what), drawn)
        before = application.acknowledged
        _wait(partial(application.is_going_on, before), application)
    # Not all that is acknowledged meanwhile: the senders send more than the consumer gets, perhaps.
    _wait(partial(application.has_got, application.told()), application)


def _wait(condition: Callable[[], bool], application: Application) -> None:
    eventually(condition, _PATIENCE_S)
    assert not application.problems, application.problems


def vanished(store: Path, application: Application) -> list[str]:
    """What was consumed, and is not at its place."""
    with Store.open(store) as reader:
        queues = read_numbers(reader)
    held = {
        (queue_id, offset): number
        for (_, queue_id), numbers in queues.items()
        for offset, number in enumerate(numbers)
    }
    return [
        f"{number} was consumed at {place}, where {held.get(place)} is"
        for place, number in application.got.items()
        if held.get(place) != number
    ]
