"""A client that sends, and consumes what it has sent: RocketMQ's C++, Node or Java client."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, Final

from tests.fault.claims import Outcome
from tests.fault.rounds.remoting.cluster import Cluster
from tests.fault.rounds.remoting.lives import TalkingLives, problems_of
from tests.support.processes.delaying import rows_of

_TIMEOUT_MS: Final = 3_000
"""After that, clients send again what was not answered."""
_REFUSED: Final = 0.2
_PROGRESS: Final = ("consumerOffset.before_write", "consumerOffset.after_backup")
_PUT: Final = ("put.before_write", "put.after_write", "put.after_dispatch")


class ConsumingLives(TalkingLives):
    """Bodies with "refused" in them are consumed again once: the consumer sends them back.

    Args:
        cluster, command: see `TalkingLives`.
        refuses: whether there are such bodies. The C++ client drops what it cannot send back.
        options: see `TalkingLives`.
    """

    topic: ClassVar[str] = "orders"
    dying: ClassVar[tuple[str, ...]] = (
        *(*_PUT, "roll.before_create", "roll.after_create", "flush.after_sync"),
        *("delay.after_append", "recovery.after_queues", "recovery.after_checkpoint"),
        *_PROGRESS,
    )
    answering: ClassVar[tuple[str, ...]] = _PUT
    is_orderly: ClassVar[bool] = False

    def __init__(self, cluster: Cluster, command: list[str], *options: str, refuses: bool) -> None:
        super().__init__(cluster, command, *options)
        self.releasing = _PUT if refuses else _PROGRESS
        self._refused = _REFUSED if refuses else 0.0
        self.sent: dict[str, int] = {}
        self.got: set[str] = set()

    @property
    def acknowledged(self) -> int:
        return len(self.sent)

    def body(self, drawn: random.Random, number: int) -> str:
        """One in five is refused at first."""
        return f"refused-{number}" if drawn.random() < self._refused else f"body-{number}"

    def held_body(self, drawn: random.Random, number: int) -> str:
        """Held, and then refused."""
        return f"refused-{number}" if self._refused else f"body-{number}"

    def take(self, what: str, words: list[str]) -> None:
        """`sent MSGID BODY OFFSET`, `got BODY TIMES KEY TAG QUEUE OFFSET`."""
        if what == "sent":
            _, body, offset = words
            self.sent[body] = int(offset)
            self.done(body)
        elif what == "held":
            self.held(words[0])
        elif what == "got":
            body, times, *_, queue, offset = words
            if int(times) or "refused" not in body:
                self.got.add(body)
            if self.is_orderly:
                self.consumed(int(queue), int(offset))

    def is_complete(self, drawn: random.Random) -> bool:
        """Whether each message that was acknowledged has been consumed."""
        return self.is_idle() and self.sent.keys() <= self.got

    def compare(self) -> Outcome:
        """Each acknowledgement has its message; other copies have a reason to be there."""
        others = self.problems + problems_of(self.cluster.store)
        found = defaultdict[str, list[dict[str, Any]]](list)
        for row in rows_of(self.cluster.store, self.topic):
            found[row["body"].decode()].append(row)
        others += [f"{body} was never sent" for body in found.keys() - set(self.bodies)]
        lost = [
            body
            for body, offset in self.sent.items()
            if offset not in [row["queueOffset"] for row in found[body]]
        ]
        copies = sum(unexplained(rows, self.cluster.broker.killed) for rows in found.values())
        return Outcome(len(lost), copies, tuple(others))


class OrderlyLives(ConsumingLives):
    """An orderly consumer: it holds the locks of its queues, whose messages are in order.

    A process with the ID of the one before holds its locks, another waits until they are too old.
    """

    is_orderly: ClassVar[bool] = True

    def __init__(self, cluster: Cluster, command: list[str]) -> None:
        super().__init__(cluster, command, "--orderly", "first", refuses=False)

    def follow(self, owner: str) -> None:
        """Let the next process be another client, to whom the locks do not belong."""
        self.command[-1] = owner

    def compare(self) -> Outcome:
        """The queues hold the messages in their order, too."""
        outcome = super().compare()
        queues = defaultdict[int, list[int]](list)
        for row in rows_of(self.cluster.store, self.topic):
            queues[row["queueId"]].append(int(row["body"].decode().rpartition("-")[2]))
        wrong = [f"queue {one} is out of order" for one, n in queues.items() if n != sorted(n)]
        return Outcome(outcome.lost, outcome.doubled, (*outcome.others, *wrong))


def unexplained(rows: Sequence[dict[str, Any]], killed: Sequence[int]) -> int:
    """How many copies of a message nobody has a reason for.

    A client sends a message again when it was not answered: the store process was killed since the
    copy before was sent, or the client's time was over.

    Args:
        rows: the message, as often as it is stored.
        killed: when the store process was, in milliseconds.
    """
    times = sorted(
        (1000 * row["bornTimestamp"].timestamp(), 1000 * row["storeTimestamp"].timestamp())
        for row in rows
    )
    return sum(
        not any(sent <= one <= stored for one in killed) and again - sent < _TIMEOUT_MS
        for (sent, _), (again, stored) in pairwise(times)
    )
