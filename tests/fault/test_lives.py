"""What was said is compared with the store: what is wrong in it is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqstore_spark.engine import StoreWriter
from tests.fault.claims import CLIENT, Claims, Outcome, compare_all
from tests.fault.messages import block
from tests.fault.process import MovingClock
from tests.fault.rounds.expiry import ExpiryAccount, expiring, put
from tests.fault.rounds.lives import START
from tests.support.stores.storing import config
from tests.support.waiting import eventually

pytestmark = pytest.mark.fault


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
    assert account.compare(tmp_path / "store", (), lost_tail=False).lost > 0
    account.take("expire", [before])
    assert account.compare(tmp_path / "store", (), lost_tail=False) == Outcome(0, 0, ())


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
