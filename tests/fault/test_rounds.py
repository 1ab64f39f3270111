"""A share of each row of the table of rounds, and what breaks the promises is found out."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.fault.claims import Claims
from tests.fault.power import why_no_loop_mounts
from tests.fault.rounds.delays import DelayAccount
from tests.fault.rounds.driver import Row, run
from tests.fault.rounds.life import settle
from tests.fault.rounds.lives import CALLS, COUNTS, EIO, PLACES, Account, Lives, injected
from tests.fault.rounds.table import AT_PLACES, ROWS, power_cut
from tests.fault.rounds.transactions import TransactionAccount
from tests.fault.traces import why_no_strace
from tests.support.sampling import one_in

pytestmark = pytest.mark.fault

PUT_OFF = (" yet: ", "could not be used: ")
"""Warnings after which the process continues, for nothing that it promised depended on the call."""


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            row,
            id=row.name,
            marks=[pytest.mark.skipif(bool(row.lacks()), reason=row.lacks()),
                   *[pytest.mark.slow] * row.is_slow],
        )
        for row in ROWS
        if row.tested
    ],
)  # fmt: skip
def test_nothing_is_lost_or_doubled(tmp_path: Path, row: Row) -> None:
    numbers = range(row.tested) if row.share else one_in(row.tested, range(1000))
    tally = run(row, tmp_path, numbers, 2)
    tally.require_none()
    assert tally.acknowledged > 0
    assert tally.faults > 0.4 * tally.rounds


@pytest.mark.parametrize("name", PLACES)
def test_killed_at_a_place(tmp_path: Path, name: str) -> None:
    tally = run(AT_PLACES, tmp_path, [PLACES.index(name) * len(COUNTS)])
    tally.require_none()
    assert tally.faults == 1


@pytest.mark.skipif(bool(why_no_strace()), reason=why_no_strace())
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("k", [1, 8, 14])
def test_after_a_failed_call_nothing_is_acknowledged(tmp_path: Path, call: str, k: int) -> None:
    claims = Claims()
    store = tmp_path / "store"
    ending, fired = injected(store, claims, k, call, EIO)
    assert fired
    assert "Traceback" not in ending.errors
    assert "resumed" not in ending.lines
    assert "Input/output error" in ending.refusal + ending.errors
    assert ending.code != 0 or any(each in ending.errors for each in PUT_OFF)
    settle(store)
    claims.check(store)


@pytest.mark.skipif(bool(why_no_loop_mounts()), reason=why_no_loop_mounts())
@pytest.mark.parametrize(
    ("flush", "mutant"),
    [
        ("SYNC_FLUSH", "acknowledge-before-flush"),
        ("SYNC_FLUSH", "no-fdatasync"),
        ("ASYNC_FLUSH", "no-fdatasync"),
    ],
)
def test_a_writer_that_breaks_promise_1_is_found_out(
    tmp_path: Path, flush: str, mutant: str
) -> None:
    assert run(power_cut(flush, mutant, commits=0.0), tmp_path, range(8)).lost > 0


@pytest.mark.parametrize(
    ("account", "failpoint"),
    [(TransactionAccount, "transactions.after_end:4"), (DelayAccount, "delay.after_append:1")],
)
def test_a_store_that_forgets_is_found_out(
    tmp_path: Path, account: type[Account], failpoint: str
) -> None:
    scene = partial(Lives, account=account, mutant="forget", failpoint=failpoint)
    assert run(Row("forgets", scene), tmp_path, range(2)).doubled > 0
