"""Senders and a consumer in Python, over all their lives: `application` is the process."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import ClassVar, Final

from rmqstore_spark.engine.failpoints import NAMES
from rmqstore_spark.reader import Store
from tests.fault.claims import CLIENT, Claims, Outcome, compare_all
from tests.fault.messages import read_numbers
from tests.fault.rounds.remoting.application import TOPIC
from tests.fault.rounds.remoting.cluster import Cluster
from tests.fault.rounds.remoting.lives import ClientLives

_SENDERS: Final = 3


class Application(ClientLives):
    """What is acknowledged is there once, and consumed at its place and in its order.

    Attributes:
        senders: what each of them was told.
        got: the number at each place that was consumed, by queue and offset.
    """

    topic: ClassVar[str] = TOPIC
    dying: ClassVar[tuple[str, ...]] = tuple(
        name
        for name in NAMES
        if name.startswith(("put.", "roll.", "flush.", "recovery.", "queues.", "consumerOffset."))
    )

    def __init__(self, cluster: Cluster) -> None:
        module = "tests.fault.rounds.remoting.application"
        super().__init__(cluster, [sys.executable, "-m", module, cluster.name_server])
        self.senders = [Claims(sender * CLIENT) for sender in range(_SENDERS)]
        self.got: dict[tuple[int, int], int] = {}
        self._wanted: set[int] = set()
        self._lives = 0

    def arguments(self) -> list[str]:
        """It continues where the one before ended."""
        self._lives += 1
        return [str(self._lives), *(str(claims.next_number) for claims in self.senders)]

    @property
    def acknowledged(self) -> int:
        return sum(claims.acknowledged for claims in self.senders)

    def acknowledged_numbers(self) -> set[int]:
        """The messages that have been acknowledged until now."""
        return {
            number
            for claims in self.senders
            for operation in claims.operations
            if operation.done
            for number in operation.numbers
        }

    def has_got(self, messages: set[int]) -> bool:
        """Whether the consumer has seen some messages."""
        return messages <= set(self.got.values())

    def take(self, what: str, words: list[str]) -> None:
        """`begin FIRST COUNT`, `done FIRST COUNT`, `got QUEUE OFFSET NUMBER`."""
        if what == "got":
            queue, offset, number = map(int, words)
            self.consumed(queue, offset)
            if self.got.setdefault((queue, offset), number) != number:
                self.problems.append(f"queue {queue}: another message at {offset} than before")
        elif what in ("begin", "done"):
            claims = self.senders[int(words[0]) // CLIENT]
            claims.take(what, ["put", *words])

    def is_complete(self, drawn: random.Random) -> bool:
        """Whether it has consumed what was acknowledged when that was asked first.

        Not what is acknowledged meanwhile: the senders send more than the consumer gets, perhaps.
        """
        self.is_going_on(0, drawn)
        self._wanted = self._wanted or self.acknowledged_numbers()
        return self.has_got(self._wanted)

    def compare(self) -> Outcome:
        """What was consumed is at its place, too."""
        outcome = compare_all(self.cluster.store, self.senders)
        others = (*outcome.others, *self.problems, *vanished(self.cluster.store, self))
        return Outcome(outcome.lost, outcome.doubled, others)


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
