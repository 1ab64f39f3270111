"""The Java client that measures; `Load.java` has its commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.clients.rounds import seconds_of
from tests.rocketmq.processes import Program, RocketMq

__all__ = ["Load", "Sent", "Times"]

_WARM_UP: Final = 0.5
_MEASURED: Final = 1.5


class Sent(NamedTuple):
    """What came out of sending.

    Attributes:
        rate: messages a second.
        p99_ms: of the times from a send to its answer.
        failed: sends that failed, or were refused.
        failure: the last of the errors.
        unsent: sends that did not leave the client, which found no route for them.
    """

    rate: float
    p99_ms: float
    failed: int
    failure: str
    unsent: int = 0


class Times(NamedTuple):
    """Milliseconds that messages took."""

    median_ms: float
    p99_ms: float


class Load(Program):
    """A client of RocketMQ that measures.

    Args:
        rocketmq: the distribution.
        name_server: where it asks for brokers.
    """

    def __init__(self, rocketmq: RocketMq, name_server: str) -> None:
        super().__init__(rocketmq, Path(__file__).with_name("Load.java"), name_server)

    def __enter__(self) -> Load:
        return self

    def create_topic(self, broker: str, topic: str, queues: int) -> None:
        """Create a topic on a broker."""
        self._said("topic", broker, topic, queues)

    def send(self, topic: str, threads: int, size: int, batch: int = 1) -> Sent:
        """Send from threads that wait for each answer.

        Args:
            topic: where to.
            threads: how many; they share one producer.
            size: bytes of a body.
            batch: messages in a request.
        """
        times = seconds_of(_WARM_UP), seconds_of(_MEASURED)
        said = self._said("send", topic, threads, size, batch, *times)
        return Sent(said["rate"], said["p99Ms"], said["failed"], said["failure"])

    def warm_up(self, topic: str, seconds: float) -> None:
        """Send and pull for some seconds each, so that Java compiles both ends of it."""
        self._said("send", topic, 16, 1024, 1, 0, seconds_of(seconds))
        self._said("pull", topic, 2, 0, seconds_of(seconds))

    def fill(self, topic: str, size: int, count: int) -> None:
        """Send so many messages with bodies of a size, in batches."""
        self._said("fill", topic, size, count)

    def consume(self, topic: str, count: int) -> float:
        """Return messages a second of a push consumer, of so many that are there."""
        return float(self._said("consume", topic, count)["rate"])

    def wait(self, topic: str, queues: int, count: int) -> Times:
        """Return the times from a send to a push consumer that waits, of so many messages."""
        said = self._said("wait", topic, queues, count)
        return Times(said["medianMs"], said["p99Ms"])

    def pull(self, topic: str, threads: int) -> float:
        """Return messages a second of a pull consumer with so many threads."""
        times = seconds_of(_WARM_UP), seconds_of(_MEASURED)
        return float(self._said("pull", topic, threads, *times)["rate"])

    def _said(self, *words: object) -> dict[str, Any]:
        (answer,) = self.ask(*words)
        return answer
