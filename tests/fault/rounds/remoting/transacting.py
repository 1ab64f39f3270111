"""A producer of transactional messages, over all its lives: each is ended once, or never shown."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import ClassVar, Final

from tests.fault.claims import Outcome
from tests.fault.rounds.remoting.cluster import Cluster
from tests.fault.rounds.remoting.lives import TalkingLives, problems_of
from tests.support.processes.delaying import rows_of
from tests.support.processes.halving import waiting_in

_GIVEN_UP: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
_OUTCOMES: Final = ("commit", "rollback", "late-commit", "late-rollback")
_LOOK_S: Final = 0.2


class TransactingLives(TalkingLives):
    """The body decides what becomes of a transaction, whichever process is asked about it."""

    topic: ClassVar[str] = "transfers"
    dying: ClassVar[tuple[str, ...]] = (
        *("transactions.before_half", "transactions.before_end", "transactions.after_end"),
        *("transactionChecks.before_write", "transactionChecks.after_backup"),
        *("put.after_write", "put.after_dispatch", "recovery.after_queues"),
    )
    answering: ClassVar[tuple[str, ...]] = (
        *("transactions.before_half", "put.after_write", "put.after_dispatch"),
        *("transactions.before_end", "transactions.after_end"),
    )
    releasing = ("transactions.before_end", "transactions.after_end")

    def __init__(self, cluster: Cluster, command: list[str]) -> None:
        super().__init__(cluster, command, "--transactional")
        self._halves: set[str] = set()

    @property
    def acknowledged(self) -> int:
        return len(self._halves)

    def body(self, drawn: random.Random, number: int) -> str:
        return f"{drawn.choice(_OUTCOMES)}-{number}"

    def held_body(self, drawn: random.Random, number: int) -> str:
        """Held between the half message and its end, or between the check and its answer."""
        return self.body(drawn, number)

    def take(self, what: str, words: list[str]) -> None:
        """`half BODY`, `ended BODY`, `failed BODY`."""
        (body,) = words
        if what == "half":
            self._halves.add(body)
        elif what == "held":
            self.held(body)
        elif what == "failed":
            self.failed(body)
        else:
            self.done(body)

    def is_complete(self, drawn: random.Random) -> bool:
        """Whether no transaction waits for its end.

        A store process that has just started says 0 as long as it has not looked: the files tell.
        """
        time.sleep(_LOOK_S)
        is_none_known = self.is_idle() and self.cluster.broker.stats()["transactionsWaiting"] == 0
        return is_none_known and not waiting_in(self.cluster.store)

    def compare(self) -> Outcome:
        """What was committed is there once, and nothing of what was rolled back."""
        others = self.problems + problems_of(self.cluster.store)
        found = Counter(row["body"].decode() for row in rows_of(self.cluster.store, self.topic))
        others += [f"{body} was never sent" for body in found.keys() - set(self.bodies)]
        others += [f"{body} is visible" for body in found if "commit" not in body]
        given_up = rows_of(self.cluster.store, _GIVEN_UP)
        others += [f"{row['body'].decode()} was given up" for row in given_up]
        lost = [body for body in self._halves - found.keys() if "commit" in body]
        return Outcome(len(lost), found.total() - len(found), tuple(others))
