"""A clock that goes back: storeTimestamps do not, and the store reports it."""

from __future__ import annotations

import logging
from pathlib import Path
from time import monotonic

import pytest

from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.engine.append.store_time import StoreTime
from rmqstore_spark.reader import Store
from tests.support.stores.storing import Clock, config, messages, until

DAY = 86_400_000
YEAR = 365 * DAY


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "rmqstore_spark.engine.append.store_time"
    ]


@pytest.mark.parametrize("steps", [(-DAY,), (YEAR, -YEAR)], ids=["a day back", "a year and back"])
def test_a_leap_is_said_once_and_shown_as_long_as_it_lasts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, steps: tuple[int, ...]
) -> None:
    clock = Clock()
    leap = -steps[-1]
    with StoreWriter.open(tmp_path / "s", config(), clock=clock) as store:
        assert store.put_batch(messages([b"a"])).ok
        assert store.stats()["clockBehindSeconds"] == 0
        for step in steps:
            clock.now += step
            for _ in range(3):
                assert store.put_batch(messages([b"b"])).ok
        assert store.stats()["clockBehindSeconds"] == leap / 1000
        clock.now += leap // 2
        assert store.put_batch(messages([b"c"])).ok
        assert store.stats()["clockBehindSeconds"] == leap / 2000
        (said,) = warnings(caplog)
        assert f"{leap / 1000:.1f} s behind" in said
        clock.now += leap
        assert store.put_batch(messages([b"d"])).ok
        assert store.stats()["clockBehindSeconds"] == 0
        until(lambda: len(warnings(caplog)) == 2)
        assert "caught up" in warnings(caplog)[1]


def test_an_idle_store_says_it_too_and_so_does_one_that_is_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    with StoreWriter.open(tmp_path / "s", config(), clock=clock) as store:
        assert store.put_batch(messages([b"a"])).ok
        clock.now -= DAY
        until(lambda: len(warnings(caplog)) == 1)
    caplog.clear()
    with StoreWriter.open(tmp_path / "s", config(), clock=clock):
        assert "86400.0 s behind" in warnings(caplog)[0]


def test_a_second_leap_is_said_too(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    time = StoreTime(clock, clock.now)
    clock.now -= 5_000
    time.stamp()
    time.look()
    clock.now += 1_000
    time.look()
    clock.now -= 60_000
    time.stamp()
    assert ["5.0 s" in warnings(caplog)[0], "64.0 s" in warnings(caplog)[1]] == [True, True]
    assert len(warnings(caplog)) == 2


def test_what_synchronization_does_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    with caplog.at_level(logging.DEBUG):
        time = StoreTime(clock, clock.now)
        for step in (-900, 800, -850, 2_000, -990, 0):
            clock.now += step
            time.stamp()
            time.look()
    assert not warnings(caplog)


def test_what_readers_by_time_see(tmp_path: Path) -> None:
    """docs/semantics.md, "Points in time"."""
    clock = Clock()
    start = clock.now
    with StoreWriter.open(tmp_path / "s", config(), clock=clock) as store:
        assert store.put_batch(messages([b"a"])).ok
        clock.now = start + 1000
        assert store.put_batch(messages([b"b"])).ok
        clock.now = start - DAY
        for _ in range(3):
            assert store.put_batch(messages([b"c"])).ok
            clock.now += 1000
    with StoreWriter.open(tmp_path / "s", config(), clock=clock) as store:  # no help
        assert store.put_batch(messages([b"d"])).ok
    with Store.open(tmp_path / "s") as reader:
        queue = reader.queue("T", 0)
        assert queue.offset_at(start - DAY) == 0
        assert queue.offset_at(start + 1) == 1
        assert queue.offset_at(start + 1000) == 1
        assert queue.offset_at(start + 1001) is None


def test_others_are_stamped_by_the_clock_whatever_is_stamped_ahead() -> None:
    clock = Clock()
    time = StoreTime(clock, clock.now)
    ahead = time.stamp_ahead(300).timestamp
    assert ahead > clock.now + 300
    for _ in range(3):
        clock.now += 100
        assert time.stamp() == clock.now
        assert not time.has_reached(ahead)
    time.continue_after(ahead)  # it is in the log
    assert time.stamp() == ahead
    clock.now = ahead + 50
    assert time.stamp() == ahead + 50
    assert time.has_reached(ahead)


def test_a_time_ahead_that_is_not_stored_leaves_no_trace() -> None:
    clock = Clock()
    time = StoreTime(clock, clock.now)
    assert time.stamp_ahead(100_000).timestamp > clock.now
    assert time.stamp() == clock.now


@pytest.mark.parametrize("span", [0, 1, 100, 1_000, 100_000])
def test_what_follows_is_never_ahead_by_as_much_as_is_logged_as_a_leap(span: int) -> None:
    clock = Clock()
    begun = monotonic()
    ahead, due = StoreTime(clock, clock.now).stamp_ahead(span)
    assert ahead - clock.now > span
    assert ahead - clock.now - 1000 * (due - begun) < 1_000
