"""Where queues end of which a member of a group never had a message."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.engine.tables.queue_ends import QueueEnds, told_ends
from rmqstore_spark.errors import CorruptStoreError

ROUTES = st.tuples(st.text(min_size=1, max_size=8), st.integers(0, 99))
ENDS = st.dictionaries(ROUTES, st.integers(0, (1 << 58) - 1), max_size=20)


@given(ends=ENDS)
def test_what_is_learned_is_there_after_a_start(
    tmp_path_factory: pytest.TempPathFactory, ends: dict[tuple[str, int], int]
) -> None:
    store = str(tmp_path_factory.mktemp("store"))
    assert not QueueEnds(store).are_lacking
    QueueEnds(store).lack()
    assert QueueEnds(store).are_lacking
    QueueEnds(store).learn(ends)
    kept = QueueEnds(store)
    assert not kept.are_lacking
    assert {route: kept.of(route) for route in ends} == ends
    assert kept.of(("another", 100)) == 0


@given(learned=ENDS, own=ENDS)
def test_own_ends_are_told_and_of_other_queues_what_was_learned(
    tmp_path_factory: pytest.TempPathFactory,
    learned: dict[tuple[str, int], int],
    own: dict[tuple[str, int], int],
) -> None:
    kept = QueueEnds(str(tmp_path_factory.mktemp("store")))
    kept.learn(learned)
    ranges: dict[str, dict[int, tuple[int, int]]] = {}
    for (topic, queue_id), end in own.items():
        ranges.setdefault(topic, {})[queue_id] = (0, end)
    told = told_ends(kept.with_those_of(ranges))
    assert told == {**learned, **{route: end for route, end in own.items() if end}}


@pytest.mark.parametrize(
    "told",
    [
        None,
        [],
        {"t": 1},
        {"t": {"x": 1}},
        {"t": {"0": -1}},
        {"t": {"0": True}},
        {"t": {"0": 1 << 58}},
        {"t": {"-1": 1}},
    ],
)
def test_what_is_no_end_is_refused(told: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        told_ends(told)


def test_nothing_that_is_known_is_forgotten_but_with_its_topic(tmp_path: Path) -> None:
    kept = QueueEnds(str(tmp_path))
    kept.learn({("a", 0): 5, ("b", 0): 7})
    kept.lack()
    kept.learn({("a", 0): 3, ("c", 1): 9})
    assert [kept.of(route) for route in (("a", 0), ("b", 0), ("c", 1))] == [5, 7, 9]
    kept.forget({"a"})
    again = QueueEnds(str(tmp_path))
    assert [again.of(route) for route in (("a", 0), ("b", 0), ("c", 1))] == [0, 7, 9]
    assert not again.are_lacking


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    kept = QueueEnds(str(tmp_path))
    kept.lack()
    Path(kept.path).write_bytes(b"{")
    with pytest.raises(CorruptStoreError, match="does not say where queues end"):
        QueueEnds(str(tmp_path))


def test_more_queues_than_may_be_told_are_refused() -> None:
    told = {"orders": {"0": 1, "1": 1}, "bills": {"0": 1}}
    assert len(told_ends(told, 3)) == 3
    with pytest.raises(ValueError, match="more than 2 queues have an end"):
        told_ends(told, 2)
