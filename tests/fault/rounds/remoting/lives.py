"""The processes of a client, one after the other: told what to send, killed, and what they say."""

from __future__ import annotations

import random
import signal
import subprocess
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

from rmqstore_spark.reader import Store
from tests.broker.clients.real_client import RealClient
from tests.fault.claims import Outcome, errors_in
from tests.fault.rounds.remoting.cluster import DELAYS, Cluster

_SENT_AT_ONCE: Final = 30
_HELD: Final = "held-"


class ClientLives(ABC):
    """A client over all its lives, that sends and consumes.

    Args:
        cluster: whose name server it asks.
        command: of its process.

    Attributes:
        topic: where it sends.
        dying: failpoints that a store process gets to under what the client does.
        may_end: whether a process may end by itself, and is followed by the next one then.
        problems: what it saw wrong.
    """

    topic: ClassVar[str]
    dying: ClassVar[tuple[str, ...]]
    may_end: ClassVar[bool] = False

    def __init__(self, cluster: Cluster, command: list[str]) -> None:
        self.problems: list[str] = []
        self.cluster = cluster
        self.command = command
        self.client: RealClient | None = None
        self._lines_read = 0
        self._next: dict[int, int] = {}
        self._is_new: set[int] = set()

    def keep(self) -> bool:
        """Start it if it does not live; returns whether it did not."""
        if self.client is not None and self.client.process.poll() is None:
            return False
        self.kill()
        stderr = subprocess.DEVNULL if self.may_end else None
        command = [*self.command, *self.arguments()]
        self.client = RealClient(self.cluster.folder, *command, stderr=stderr)
        self._lines_read = 0
        return True

    def kill(self) -> None:
        """Kill it if it lives, and note what it had said."""
        if self.client is None:
            return
        self.client.kill()
        code = self.client.process.returncode
        if code != -signal.SIGKILL and not self.may_end:
            self.problems.append(f"the client ended with {code}")
        self.note()
        with suppress(OSError):
            self.client.end()
        self.client = None
        self.begin_life()

    def begin_life(self) -> None:
        """The next consumer may begin again at what was not reported."""
        self._is_new = set(self._next)

    def note(self) -> None:
        """Note what it has said since."""
        assert self.client is not None
        lines = self.client.said[self._lines_read :]
        self._lines_read += len(lines)
        for line in lines:
            what, *words = line.split()
            if what != "ready":
                self.take(what, words)

    def consumed(self, queue: int, offset: int) -> None:
        """A queue is consumed in its order; a new consumer may repeat, but leaves nothing out."""
        expected = self._next.get(queue, 0)
        if offset > expected or (offset < expected and queue not in self._is_new):
            self.problems.append(f"queue {queue}: consumed {offset} where {expected} was next")
        self._is_new.discard(queue)
        self._next[queue] = offset + 1

    def is_going_on(self, acknowledged: int, drawn: random.Random) -> bool:
        """Whether more has been acknowledged; lets it send until then."""
        self.keep()
        self.note()
        return self.acknowledged > acknowledged

    def send(self, drawn: random.Random) -> None:
        self.keep()

    def arguments(self) -> list[str]:
        """Arguments of the next process."""
        return []

    @property
    @abstractmethod
    def acknowledged(self) -> int:
        """How many messages were."""

    @abstractmethod
    def take(self, what: str, words: list[str]) -> None:
        """Note a line that it has said."""

    @abstractmethod
    def is_complete(self, drawn: random.Random) -> bool:
        """Whether nothing more is to come of what was acknowledged; lets it live until then."""

    @abstractmethod
    def compare(self) -> Outcome:
        """Compare what was said with the store, which is closed."""


class TalkingLives(ClientLives):
    """It sends a message for each body that it reads.

    At one with "held" in it, it says `held BODY` and stands still until it reads `release BODY`.

    Args:
        cluster: whose name server it asks.
        command: of its process, which gets the name server and the topic as arguments.
        options: arguments behind these.

    Attributes:
        answering: failpoints that a store process gets to before it has answered a message.
        releasing: those that it gets to for what the client does after a hold.
        bodies: that were to be sent.
    """

    answering: ClassVar[tuple[str, ...]]
    releasing: tuple[str, ...]
    may_end: ClassVar[bool] = True

    def __init__(self, cluster: Cluster, command: list[str], *options: str) -> None:
        super().__init__(cluster, [*command, cluster.name_server, self.topic, "0", *options])
        self.bodies: list[str] = []
        self._pending: set[str] = set()
        self._holding: set[str] = set()
        self._released: list[str] = []
        self._has_held = False

    def keep(self) -> bool:
        """Start it if it does not live; what was held before is not held again."""
        if is_new := super().keep():
            self._has_held = False
            for body in self._released:
                self._write(f"release {body}")
        return is_new

    def kill(self) -> None:
        """Kill it if it lives, and note what it had said."""
        super().kill()
        self._pending.clear()
        self._released += self._holding
        self._holding.clear()

    def send(self, drawn: random.Random) -> None:
        self.keep()
        for _ in range(_SENT_AT_ONCE):
            self._tell(self.body(drawn, len(self.bodies)))

    def is_going_on(self, acknowledged: int, drawn: random.Random) -> bool:
        """Whether more has been acknowledged; lets it send until then."""
        is_more = super().is_going_on(acknowledged, drawn)
        if not is_more and not self._pending:
            self.send(drawn)
        return is_more

    def is_idle(self) -> bool:
        """Whether it has sent all that it was told."""
        self.keep()
        self.note()
        return not self._pending

    def is_holding(self, drawn: random.Random) -> bool:
        """Whether it stands still; lets it come to that."""
        self.keep()
        self.note()
        if not self._has_held:
            self._has_held = True
            self._tell(_HELD + self.held_body(drawn, len(self.bodies)))
        return bool(self._holding)

    def release(self) -> None:
        """Let it continue."""
        for body in sorted(self._holding):
            self._write(f"release {body}")
        self._released += self._holding
        self._holding.clear()
        self._has_held = False

    def done(self, body: str) -> None:
        """Note that nothing more comes of a body."""
        self._pending.discard(body)

    def failed(self, body: str) -> None:
        """Note that a body was not acknowledged: if it was to be held, another one is."""
        self._pending.discard(body)
        if _HELD in body:
            self._has_held = False

    def held(self, body: str) -> None:
        """Let it stand still if somebody waits for that, or else continue."""
        if self._has_held and body not in self._released:
            self._holding.add(body)
        else:
            self._released.append(body)
            self._write(f"release {body}")

    def _tell(self, body: str) -> None:
        self.bodies.append(body)
        self._pending.add(body)
        self._write(body)

    def _write(self, line: str) -> None:
        assert self.client is not None
        with suppress(OSError):  # it has just ended
            self.client.send(line)

    @abstractmethod
    def body(self, drawn: random.Random, number: int) -> str:
        """What it is to send next."""

    @abstractmethod
    def held_body(self, drawn: random.Random, number: int) -> str:
        """The same for a message at which it is to stand still."""


def problems_of(store: Path) -> list[str]:
    """What `rmqstore verify` finds wrong with a store of a cluster."""
    with Store.open(store) as reader:
        return errors_in(reader, delay_levels=DELAYS)
