"""A store process as a broker, its name server and applications, killed in any phase."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final

from rmqstore_spark.client import StoreClient
from rmqstore_spark.engine.failpoints import NAMES
from rmqstore_spark.reader.store import Store
from tests.fault.claims import CLIENT, Claims, compare_all
from tests.fault.messages import read_numbers
from tests.fault.remote import serve
from tests.fault.rounds.application import TOPIC
from tests.fault.rounds.cpp import CPP_TOPIC, CppApplication
from tests.fault.rounds.writer import Tally
from tests.namesrv.serving import NamesrvProcess
from tests.support.processes.ports import free_port
from tests.support.processes.serving import StoreProcess, eventually

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
        module = "tests.fault.rounds.application"
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

    def has_got_all(self) -> bool:
        """Whether the consumer has seen what was acknowledged until now."""
        return not self.missed(set(self.got.values()))

    def missed(self, seen: set[int]) -> list[int]:
        """The messages that were acknowledged and are not among some."""
        return [
            number
            for claims in self.senders
            for operation in claims.operations[:]
            if operation.done
            for number in operation.numbers
            if number not in seen
        ]

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


class _Cluster:
    """A store process that is a broker, its name server, and the application.

    Args:
        folder: for their files.
        cpp: the command of the C++ client, if it takes part.
    """

    def __init__(self, folder: Path, cpp: list[str] | None) -> None:
        self.store = folder / "broker" / "store"
        self.store.parent.mkdir(parents=True)
        self._folder = folder
        self._ends = ExitStack()
        self._name_port, self._port = free_port(), free_port()
        self._name_server: NamesrvProcess | None = None
        self._process: StoreProcess | None = None
        name_server = f"127.0.0.1:{self._name_port}"
        self.application = Application(name_server)
        self.cpp = CppApplication(folder, cpp, name_server) if cpp else None

    def __enter__(self) -> _Cluster:
        self._start_name_server()
        self._start_store().ready()
        with StoreClient(self._running().endpoint) as client:
            client.create_topic(TOPIC, write_queue_nums=4)
            client.create_topic(CPP_TOPIC, write_queue_nums=4)
        self.application.start(0)
        return self

    def __exit__(self, *_: object) -> None:
        self._kill_applications()
        self._ends.close()

    def kill(self, what: str, drawn: random.Random) -> None:
        """Kill some of them, and start them again."""
        if what in ("store", "store and application", "all"):
            self._kill_store()
        if what in ("application", "store and application", "all"):
            self._kill_applications()
        if what in ("name server", "all"):
            assert self._name_server is not None
            self._name_server.process.kill()
            self._name_server.process.wait()
            self._start_name_server()
        if what != "name server" and drawn.random() < _AT_A_PLACE:
            self._die_at(f"{drawn.choice(_PLACES)}:{drawn.randint(1, 9)}")
        if self._process is None:
            self._start_store().ready()
        if what in ("application", "store and application", "all"):
            self.application.start(drawn.randrange(1 << 30))

    def close(self) -> None:
        """End all of them; the store process closes its store."""
        self._kill_applications()
        process = self._running()
        process.signal(signal.SIGTERM)
        assert process.wait() == 0, process.output

    def _kill_applications(self) -> None:
        self.application.kill()
        if self.cpp is not None:
            self.cpp.kill()

    def _running(self) -> StoreProcess:
        assert self._process is not None
        return self._process

    def _start_name_server(self) -> None:
        server = NamesrvProcess(self._folder, "--port", str(self._name_port))
        self._name_server = self._ends.enter_context(server)

    def _start_store(self, failpoint: str = "") -> StoreProcess:
        settings = (
            f"listenPort={self._port}", "vipListenPort=0", "registerNameServerPeriod=10000",
            f"namesrvAddr=127.0.0.1:{self._name_port}",
        )  # fmt: skip
        environment = {"RMQSTORE_FAILPOINT": failpoint}
        process = serve(self.store, 0, *settings, environment=environment)
        self._process = self._ends.enter_context(process)
        return process

    def _kill_store(self) -> None:
        process = self._running()
        process.signal(signal.SIGKILL)
        process.process.wait()
        self._process = None

    def _die_at(self, failpoint: str) -> None:
        """Let a store process die at a place, under what the application sends."""
        if self._process is not None:
            self._kill_store()
        process = self._start_store(failpoint)
        with suppress(subprocess.TimeoutExpired):
            process.process.wait(_REACHED_S)
        self._kill_store()


def broker_kills(
    folder: Path, rounds: int, *, first_seed: int = 0, cpp: list[str] | None = None
) -> Tally:
    """Kill store process, name server or application while messages are sent and consumed.

    Args:
        folder: for the stores.
        rounds: how often.
        first_seed: of what is done.
        cpp: the command of the C++ client, if it takes part.
    """
    tally = Tally()
    for begin in range(0, rounds, _ROUNDS_PER_STORE):
        count = min(_ROUNDS_PER_STORE, rounds - begin)
        with _Cluster(folder / f"broker-{begin}", cpp) as cluster:
            _rounds(cluster, count, random.Random(first_seed + begin))
            cluster.close()
        application = cluster.application
        tally.add(compare_all(cluster.store, application.senders))
        tally.others += tuple(application.problems + vanished(cluster.store, application))
        tally.rounds += count
        tally.faults += count
        tally.acknowledged += application.acknowledged
        if cluster.cpp is not None:
            tally.lost += len(cluster.cpp.missed(cluster.store))
            tally.acknowledged += cluster.cpp.acknowledged
    return tally


def _rounds(cluster: _Cluster, count: int, drawn: random.Random) -> None:
    application = cluster.application
    _wait(lambda: application.is_going_on(0), application)
    for _ in range(count):
        if cluster.cpp is not None:
            cluster.cpp.send()
        time.sleep(drawn.uniform(0, _LONGEST_S))
        what = ("store", "store", "application", "name server", "store and application", "all")
        cluster.kill(drawn.choice(what), drawn)
        before = application.acknowledged
        _wait(partial(application.is_going_on, before), application)
    _wait(application.has_got_all, application)
    if cluster.cpp is not None:
        before = cluster.cpp.acknowledged
        cluster.cpp.send()
        _wait(partial(cluster.cpp.has_got_all, before), application)


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
