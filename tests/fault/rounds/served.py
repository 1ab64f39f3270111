"""A store process under its clients: killed, its answers lost, its connections cut."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from rmqstore_spark.client import StoreClient
from rmqstore_spark.engine.failpoints import NAMES
from rmqstore_spark.errors import ServiceError
from tests.fault.claims import Outcome, compare_all
from tests.fault.messages import block
from tests.fault.proxy import BreakingProxy
from tests.fault.remote import RemoteWriter, Restarted, Writers, request_of, stage
from tests.fault.rounds.driver import Scene
from tests.support.processes.ports import free_port
from tests.support.processes.serving import eventually

_PLACES: Final = tuple(
    name
    for name in NAMES
    if name.startswith(("stage.", "commit.", "ledger.", "roll.", "flush.", "recovery."))
)
_AT_A_PLACE: Final = 0.6
_LONGEST_S: Final = 1.0
_REACHED_S: Final = 4.0
_ANSWER_S: Final = 60


class _Served(Scene):
    """A store process, and what clients were told in the end."""

    setting: str = "flushDiskType=ASYNC_FLUSH"
    clients: int = 1

    def begin(self) -> None:
        self.process = Restarted(self.ends, self.store, free_port(), self.setting)
        self.process.start()
        endpoint = f"rmq://127.0.0.1:{self.process.port}"
        self.writers = Writers(self.ends, endpoint, self.clients)
        self.told = self.writers.claims

    def finish(self) -> Outcome:
        self.process.close()
        return compare_all(self.store, self.writers.claims)


@dataclass(kw_only=True)
class KilledUnderClients(_Served):
    """The process is killed at a random moment; under several clients, at named places, too.

    Attributes:
        setting: of the store.
        clients: how many there are.
    """

    setting: str
    clients: int = 1

    def begin(self) -> None:
        super().begin()
        self.writers.begin(self.seed)

    def round(self, number: int, seed: int) -> bool:
        self.writers.is_served()
        time.sleep(self.drawn.uniform(0, _LONGEST_S))
        self.process.kill()
        if self.clients > 1 and self.drawn.random() < _AT_A_PLACE:
            self.done.append(f"{self.drawn.choice(_PLACES)}:{self.drawn.randint(1, 6)}")
            self.process.die_at(self.done[-1], _REACHED_S)
        self.process.start()
        return True

    def finish(self) -> Outcome:
        """They continue, and noticed."""
        while not self.writers.failures:  # each kill came between two requests
            self.round(0, self.seed)
        self.writers.is_served()
        self.writers.wait_for_more()
        self.writers.end()
        return super().finish()


class _Broken(_Served):
    """A client reaches the process through a connection that breaks."""

    def begin(self) -> None:
        super().begin()
        self.claims = self.writers.claims[0]
        self.proxy = self.ends.enter_context(BreakingProxy(self.process.port))
        self.writer = RemoteWriter(self.proxy.endpoint, self.claims)
        self.writer.make_topics()


class LostAnswers(_Broken):
    """The answers to commits, which clients ask for again, and to puts, which they do not."""

    def begin(self) -> None:
        super().begin()
        self._threads = self.ends.enter_context(ThreadPoolExecutor(1))
        self._client = self.ends.enter_context(
            StoreClient(self.proxy.endpoint, timeout_s=20, retries=6)
        )

    def round(self, number: int, seed: int) -> bool:
        (self._lose_a_put if number % 2 else self._lose_a_commit)()
        return True

    def _lose_a_commit(self) -> None:
        first, commits = self.claims.next_number, self.process.stats()["commits"]
        self.claims.begin("commit", first, 400)
        request = request_of(first, stage(self._client, first, 400))
        self.proxy.drop_answers()
        committing = self._threads.submit(self._client.commit, request)
        eventually(lambda: self.process.stats()["commits"] == commits + 1)
        self.proxy.cut()
        assert committing.result(_ANSWER_S).status == "ALREADY_COMMITTED"
        self.claims.done("commit", first)

    def _lose_a_put(self) -> None:
        first = self.claims.next_number
        with self._client.put_stream() as stream:
            self.claims.begin("put", first, 60)
            assert stream.put(block(first, 60)).is_ok
            self.claims.done("put", first)
            messages = self.process.stats()["putMessages"]
            self.claims.begin("put", first + 60, 60)
            self.proxy.drop_answers()
            putting = self._threads.submit(stream.put, block(first + 60, 60))
            eventually(lambda: self.process.stats()["putMessages"] == messages + 60)
            self.proxy.cut()
            error = putting.exception(_ANSWER_S)
            assert isinstance(error, ServiceError), error
            assert "connection" in str(error)
            stream.close()
            # The store has it, and the client does not know: it must be there, and only once.
            self.claims.done("put", first + 60)


class CutConnections(_Broken):
    """Cut after any number of bytes, in each direction, while a client continues."""

    def round(self, number: int, seed: int) -> bool:
        """Commit and put, during which the connections may be cut."""
        before = self.proxy.cuts
        direction = self.drawn.choice(("up", "down"))
        most = 60_000 if direction == "up" else 2_000
        self.proxy.cut_after(direction, int(most ** self.drawn.random()))
        self.writer.commit(self.drawn.choice((2, 60)))
        self.writer.put(self.drawn.choice((1, 60)))
        return self.proxy.cuts > before
