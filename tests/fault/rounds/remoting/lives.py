"""The processes of a client, one after the other: told what to send, killed, and what they say."""

from __future__ import annotations

import random
import subprocess
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

from rmqstore_spark.reader.store import Store
from rmqstore_spark.verify import verify
from tests.broker.clients.real_client import RealClient
from tests.fault.claims import Outcome
from tests.fault.rounds.remoting.cluster import DELAYS, Cluster

__all__ = ["Lives", "errors_in"]

_SENT_AT_ONCE: Final = 30
_HELD: Final = "held-"


class Lives(ABC):
    """A client over all its lives. A process that ends by itself is followed by the next one.

    It sends a message for each body that it reads. At one with "held" in it, it says `held BODY`
    and stands still until it reads `release BODY`.

    Args:
        cluster: whose name server it asks.
        command: of its process, which gets the name server and the topic as arguments.
        options: arguments behind these.

    Attributes:
        dying: failpoints that a store process gets to under what the client does.
        answering: those that it gets to before it has answered a message.
        releasing: those that it gets to for what the client does after a hold.
        told: bodies that were to be sent.
        problems: what it saw wrong.
    """

    topic: ClassVar[str]
    dying: ClassVar[tuple[str, ...]]
    answering: ClassVar[tuple[str, ...]]
    releasing: tuple[str, ...]

    def __init__(self, cluster: Cluster, command: list[str], *options: str) -> None:
        self.told: list[str] = []
        self.problems: list[str] = []
        self.cluster = cluster
        self._command = [*command, cluster.name_server, self.topic, "0", *options]
        self._client: RealClient | None = None
        self._lines_read = 0
        self._pending: set[str] = set()
        self._holding: set[str] = set()
        self._released: list[str] = []
        self._has_held = False

    def keep(self) -> None:
        """Start it if it does not live."""
        if self._client is not None and self._client.process.poll() is None:
            return
        self.kill()
        self._client = RealClient(self.cluster.folder, *self._command, stderr=subprocess.DEVNULL)
        self._lines_read, self._has_held = 0, False
        for body in self._released:
            self._write(f"release {body}")

    def kill(self) -> None:
        """Kill it if it lives, and note what it had said."""
        if self._client is None:
            return
        self._client.kill()
        self.note()
        with suppress(OSError):
            self._client.end()
        self._client = None
        self._pending.clear()
        self._released += self._holding
        self._holding.clear()
        self.begin_life()

    def send(self, drawn: random.Random) -> None:
        """Let it send messages."""
        self.keep()
        for _ in range(_SENT_AT_ONCE):
            self._tell(self.body(drawn, len(self.told)))

    def is_going_on(self, acknowledged: int, drawn: random.Random) -> bool:
        """Whether more has been acknowledged; lets it send until then."""
        self.keep()
        self.note()
        if self.acknowledged > acknowledged:
            return True
        if not self._pending:
            self.send(drawn)
        return False

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
            self._tell(_HELD + self.held_body(drawn, len(self.told)))
        return bool(self._holding)

    def release(self) -> None:
        """Let it continue."""
        for body in sorted(self._holding):
            self._write(f"release {body}")
        self._released += self._holding
        self._holding.clear()
        self._has_held = False

    def note(self) -> None:
        """Note what it has said since."""
        assert self._client is not None
        lines = self._client.said[self._lines_read :]
        self._lines_read += len(lines)
        for line in lines:
            what, *words = line.split()
            if what == "held":
                self._held(words[0])
            elif what != "ready":
                self.take(what, words)

    def done(self, body: str) -> None:
        """Note that nothing more comes of a body."""
        self._pending.discard(body)

    def failed(self, body: str) -> None:
        """Note that a body was not acknowledged: if it was to be held, another one is."""
        self._pending.discard(body)
        if _HELD in body:
            self._has_held = False

    def _held(self, body: str) -> None:
        """Let it stand still if somebody waits for that, or else continue."""
        if self._has_held and body not in self._released:
            self._holding.add(body)
        else:
            self._released.append(body)
            self._write(f"release {body}")

    def _tell(self, body: str) -> None:
        self.told.append(body)
        self._pending.add(body)
        self._write(body)

    def _write(self, line: str) -> None:
        assert self._client is not None
        with suppress(OSError):  # it has just ended
            self._client.send(line)

    @property
    @abstractmethod
    def acknowledged(self) -> int:
        """How many messages were."""

    @abstractmethod
    def body(self, drawn: random.Random, number: int) -> str:
        """What it is to send next."""

    @abstractmethod
    def held_body(self, drawn: random.Random, number: int) -> str:
        """The same for a message at which it is to stand still."""

    @abstractmethod
    def take(self, what: str, words: list[str]) -> None:
        """Note a line that it has said."""

    @abstractmethod
    def begin_life(self) -> None:
        """Note that the process has ended, and the next one follows."""

    @abstractmethod
    def is_complete(self) -> bool:
        """Whether nothing more is to come of what was acknowledged; lets it live until then."""

    @abstractmethod
    def compare(self) -> Outcome:
        """Compare what was said with the store, which is closed."""


def errors_in(store: Path) -> list[str]:
    """What `rmqstore verify` finds wrong with a store."""
    with Store.open(store) as reader:
        problems = verify(reader, delay_levels=DELAYS).problems
    return [str(one) for one in problems if one.severity == "error"]
