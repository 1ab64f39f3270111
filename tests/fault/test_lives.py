"""What processes do that are killed again and again: promises 1, 2, 3, 9, 10 and 11."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqstore_spark.engine.store import StoreWriter
from tests.fault.claims import CLIENT, Claims, Outcome, compare_all
from tests.fault.messages import block
from tests.fault.rounds.accounts import START, Account, killed_lives
from tests.fault.rounds.delays import ClockBackAccount, DelayAccount
from tests.fault.rounds.expiry import ExpiryAccount, expiring, put
from tests.fault.rounds.process import MovingClock
from tests.fault.rounds.remoting.broker import Application, broker_kills, vanished
from tests.fault.rounds.staging import IN_FILES, IN_MEMORY, staging_kills
from tests.fault.rounds.transactions import TransactionAccount
from tests.support.stores.storing import config
from tests.support.waiting import eventually

pytestmark = pytest.mark.fault


@pytest.mark.parametrize(
    "account", [TransactionAccount, DelayAccount, ClockBackAccount, ExpiryAccount]
)
def test_killed_at_any_time(tmp_path: Path, account: type[Account]) -> None:
    tally = killed_lives(tmp_path, 2, account, first_seed=2)
    tally.require_none()
    assert tally.acknowledged > 0


@pytest.mark.parametrize(
    ("account", "failpoint"),
    [(TransactionAccount, "transactions.after_end:4"), (DelayAccount, "delay.after_append:1")],
)
def test_a_store_that_forgets_is_found_out(
    tmp_path: Path, account: type[Account], failpoint: str
) -> None:
    tally = killed_lives(tmp_path, 2, account, is_mutant=True, failpoint=failpoint)
    assert tally.doubled > 0


def test_what_expires_too_early_is_found_out(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    account, clock = ExpiryAccount(), MovingClock(START)
    with StoreWriter.open(tmp_path / "store", expiring(), clock=clock) as store:
        while not store.expirable(clock() + 1).segments:
            put(store, clock, range(account.number, account.number + 16))
            for line in capfd.readouterr().out.splitlines():
                what, *numbers = line.split()
                account.take(what, list(map(int, numbers)))
        before = clock() + 1
        store.expire(before)
        eventually(lambda: not store.expirable(1).is_working)
    assert account.compare(tmp_path / "store").lost > 0
    account.take("expire", [before])
    assert account.compare(tmp_path / "store") == Outcome(0, 0, ())


@pytest.mark.parametrize("memory", [IN_FILES, IN_MEMORY], ids=["files", "memory"])
def test_batches_of_several_clients(tmp_path: Path, memory: str) -> None:
    tally = staging_kills(tmp_path, 2, memory)
    tally.require_none()
    assert tally.acknowledged > 0


def test_a_broker_its_name_server_and_an_application(tmp_path: Path) -> None:
    tally = broker_kills(tmp_path, 2)
    tally.require_none()
    assert tally.acknowledged > 0


def test_what_clients_were_told_is_compared(tmp_path: Path) -> None:
    clients = [Claims(number * CLIENT) for number in range(2)]
    one, two = clients
    with StoreWriter.open(tmp_path / "store", config()) as store:
        for claims, kind, count, stored in (
            (one, "commit", 4, 4), (two, "commit", 4, 4), (one, "put", 3, 2), (two, "stage", 3, 0)
        ):  # fmt: skip
            first = claims.next_number
            claims.begin(kind, first, count)
            if stored:
                assert store.put(block(first, stored)).ok
        store.flush()
        assert compare_all(tmp_path / "store", clients).others == ()
        one.done("put", 4)
        assert store.put(block(CLIENT + 1, 1)).ok
        assert store.put(block(CLIENT + 4, 1)).ok
        assert store.put(block(2 * CLIENT, 1)).ok
    found = compare_all(tmp_path / "store", clients)
    assert (found.lost, found.doubled) == (1, 1)
    assert [problem.partition(":")[0] for problem in found.others] == [
        "1 messages of a batch that was not committed",
        f"{2 * CLIENT} was never written",
    ]


def test_what_an_application_says_is_compared(tmp_path: Path) -> None:
    application = Application("nobody:9876")
    with StoreWriter.open(tmp_path / "store", config()) as store:
        assert store.put(block(0, 2)).ok
    for line in ("begin 0 2", "done 0 2", "got 0 0 0"):
        application.take(line)
    assert application.told() == {0, 1}
    assert not application.has_got({0, 1})
    application.take("got 1 0 1")
    assert application.has_got({0, 1})
    assert not vanished(tmp_path / "store", application)
    for line in ("got 0 0 0", "got 1 2 9", "got 0 0 7"):
        application.take(line)
    assert application.problems == [
        "queue 0: consumed 0 where 1 was next",
        "queue 1: consumed 2 where 1 was next",
        "queue 0: consumed 0 where 1 was next",
        "queue 0: another message at 0 than before",
    ]
    assert len(vanished(tmp_path / "store", application)) == 1
