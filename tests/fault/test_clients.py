"""What clients of RocketMQ's protocol said is compared with the store: promises 1, 3 and 11."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from rmqstore_spark.engine import StoreWriter
from tests.fault.claims import Outcome
from tests.fault.messages import block
from tests.fault.rounds.remoting.cluster import Cluster
from tests.fault.rounds.remoting.consuming import ConsumingLives, OrderlyLives
from tests.fault.rounds.remoting.lives import ClientLives, TalkingLives
from tests.fault.rounds.remoting.plain import Application, vanished
from tests.fault.rounds.remoting.transacting import TransactingLives
from tests.support.stores.storing import config, messages

pytestmark = pytest.mark.fault

_BORN = 1_700_000_000_000


def _say(lives: ClientLives, *said: str) -> None:
    """Let a client say some lines."""
    for line in said:
        what, *words = line.split()
        lives.take(what, words)


def _compared(lives: TalkingLives, bodies: Sequence[str], *said: str, born: int = _BORN) -> Outcome:
    """What a client that has said some lines is told of a store with some messages."""
    lives.bodies = list(set(bodies) - {"stray"})
    _say(lives, *said)
    times = pa.array([born] * len(bodies), pa.int64())
    batch = messages([body.encode() for body in bodies], topic=lives.topic, bornTimestamp=times)
    with StoreWriter.open(lives.cluster.store, config()) as store:
        assert store.put_batch(batch).ok
    return lives.compare()


def test_each_acknowledgement_has_its_message_and_no_other_copy(tmp_path: Path) -> None:
    lives = ConsumingLives(Cluster(tmp_path), [], refuses=True)
    said = ["sent id a 0", "sent id b 9", "sent id gone 1", "got a 0 k t 0 0"]
    outcome = _compared(lives, ["a", "b", "a", "stray"], *said)
    assert outcome == Outcome(2, 1, ("stray was never sent",))
    lives.cluster.broker.killed.append(_BORN + 1)
    assert lives.compare().doubled == 0
    assert not lives.sent.keys() <= lives.got


def test_copies_of_another_life_explain_nothing(tmp_path: Path) -> None:
    lives = ConsumingLives(Cluster(tmp_path), [], refuses=True)
    lives.cluster.broker.killed.append(_BORN - 1)
    assert _compared(lives, ["a", "a"], "sent id a 0") == Outcome(0, 1, ())


def test_what_was_refused_must_come_again(tmp_path: Path) -> None:
    lives = ConsumingLives(Cluster(tmp_path), [], refuses=True)
    lives.take("got", ["refused-1", "0", "k", "t", "0", "0"])
    assert not lives.got
    lives.take("got", ["refused-1", "1", "k", "t", "0", "0"])
    assert lives.got == {"refused-1"}


def test_an_orderly_consumer_leaves_nothing_out_and_repeats_only_in_a_new_life(
    tmp_path: Path,
) -> None:
    lives = OrderlyLives(Cluster(tmp_path), [])
    for offset in (0, 1, 1, 3):
        lives.consumed(2, offset)
    lives.begin_life()
    lives.consumed(2, 3)
    assert lives.problems == [
        "queue 2: consumed 1 where 2 was next",
        "queue 2: consumed 3 where 2 was next",
    ]
    outcome = _compared(lives, ["body-4", "body-0"])
    assert outcome.others[-1] == "queue 0 is out of order"


def test_a_transaction_is_shown_once_or_never(tmp_path: Path) -> None:
    lives = TransactingLives(Cluster(tmp_path), [])
    bodies = ["commit-1", "late-commit-2", "commit-1", "rollback-3"]
    said = ["half commit-1", "half rollback-3", "half commit-4", "half late-rollback-5"]
    outcome = _compared(lives, bodies, *said)
    assert outcome == Outcome(1, 1, ("rollback-3 is visible",))


def test_what_an_application_says_is_compared(tmp_path: Path) -> None:
    application = Application(Cluster(tmp_path))
    with StoreWriter.open(tmp_path / "store", config()) as store:
        assert store.put(block(0, 2)).ok
    _say(application, "begin 0 2", "done 0 2", "got 0 0 0")
    assert application.acknowledged_numbers() == {0, 1}
    assert not application.has_got({0, 1})
    _say(application, "got 1 0 1")
    assert application.has_got({0, 1})
    assert not vanished(tmp_path / "store", application)
    _say(application, "got 0 0 0", "got 1 2 9", "got 0 0 7")
    assert application.problems == [
        "queue 0: consumed 0 where 1 was next",
        "queue 1: consumed 2 where 1 was next",
        "queue 0: consumed 0 where 1 was next",
        "queue 0: another message at 0 than before",
    ]
    assert len(vanished(tmp_path / "store", application)) == 1
