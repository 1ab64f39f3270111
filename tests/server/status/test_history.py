"""Rates, from samples of figures."""

from __future__ import annotations

from typing import Any

import pytest

from rmqstore_spark.server.status import history
from rmqstore_spark.server.status.history import History


def stats(log: int = 0, **ends: int) -> dict[str, Any]:
    """Figures: the next offset of queue 0 of topics."""
    return {
        "commitLogMaxOffset": log,
        "queues": {topic: {"0": [0, end]} for topic, end in ends.items()},
    }


def test_rates_are_those_of_the_last_minute() -> None:
    past = History()
    for number in range(20):
        past.add(10.0 * number, stats(log=1000 * number, a=50 * number, b=7))
    assert past.rates() == {("a", "0"): 5.0, ("b", "0"): 0.0}
    assert past.messages() == [5.0] * 19
    assert past.messages("b") == [0.0] * 19
    assert past.total("commitLogMaxOffset") == [100.0] * 19


def test_a_queue_that_is_new_has_no_rate_for_what_it_had_before() -> None:
    past = History()
    past.add(0, stats(a=10))
    assert past.rates() == {}
    past.add(10, stats(a=20, b=5_000_000))
    assert past.rates() == {("a", "0"): 1.0}
    past.add(20, stats(a=20, b=5_000_010))
    assert past.rates() == {("a", "0"): 0.5, ("b", "0"): 1.0}
    assert past.messages("b") == [0.0, 1.0]
    assert past.messages() == [1.0, 1.0]


def test_a_queue_that_was_cut_or_is_gone_has_no_rate_below_none() -> None:
    past = History()
    samples = ({"a": 100, "b": 5}, {"a": 40, "b": 6}, {"a": 50})
    for now, end in zip((0.0, 10.0, 20.0), samples, strict=True):
        past.add(now, stats(**end))
    assert past.messages("a") == [0.0, 1.0]
    assert past.messages("b") == [0.1, 0.0]


def test_it_keeps_no_more_than_ten_minutes() -> None:
    past = History()
    for number in range(200):
        past.add(10.0 * number, stats(a=number))
    assert len(past.messages()) == history.SAMPLES - 1


def test_its_memory_is_bounded_whatever_queues_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_MOST_QUEUES", 10)
    past = History()
    past.add(0, stats(**{f"t{number}": 0 for number in range(25)}))
    past.add(10, stats(**{f"t{number}": 10 for number in range(25)}))
    assert len(past.rates()) == 10
    assert past.messages() == [10.0]
    for round_number in range(5):  # topics are made and deleted
        past.add(20.0 + round_number, stats(**{f"r{round_number}-{n}": 0 for n in range(4)}))
    assert len(past.rates()) <= 10


def test_figures_of_a_store_that_cannot_be_read_are_a_gap() -> None:
    past = History()
    past.add(0, stats(a=10))
    past.add(10, {"state": "FAILED"})
    past.add(20, stats(a=30))
    assert past.messages("a") == [0.0, 0.0]
    assert past.rates() == {("a", "0"): 1.0}
