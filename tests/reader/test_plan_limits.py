"""A plan has no more splits than any cluster has use for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqstore_spark.errors import OptionError
from rmqstore_spark.reader import Store
from rmqstore_spark.reader import plan as planning
from rmqstore_spark.reader.options import QueueRange
from rmqstore_spark.reader.plan import MOST_SPLITS, PlanLimits, plan, plan_by_keys
from tests.support.messages.traffic import Traffic
from tests.support.stores.storebuilder import build_store


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    traffic = Traffic(110_000, topics={"orders": 2}, body_size=10)
    return build_store(tmp_path_factory.mktemp("many") / "store", traffic)


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(path) as opened:
        yield opened


def ranges(store: Store) -> list[QueueRange]:
    return [QueueRange(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in store.queues()]


@pytest.mark.parametrize(
    ("by", "limits", "words"),
    [
        ("commitlog", PlanLimits(max_bytes=1), r"raise maxBytesPerPartition \(1 bytes\)\."),
        ("auto", PlanLimits(max_bytes=100), r"raise maxBytesPerPartition \(100 bytes\)\."),
        ("queue", PlanLimits(max_bytes=1), r"raise maxBytesPerPartition \(1 bytes\)\."),
        ("queue", PlanLimits(max_records=1), r"planned: raise maxRecordsPerPartition \(1\)\."),
        (
            "queue",
            PlanLimits(min_partitions=1 << 40),
            r"planned: lower minPartitions \(1099511627776\)",
        ),
        ("commitlog", PlanLimits(min_partitions=1 << 40), r"planned: lower minPartitions"),
    ],
)
def test_too_many_splits_are_refused(by: str, limits: PlanLimits, words: str, store: Store) -> None:
    with pytest.raises(OptionError, match=words) as error:
        plan(store, ranges(store), limits, by=by)  # type: ignore[arg-type]
    found = re.search(r"cut into (\d+) partitions, and at most 100000", str(error.value))
    assert found is not None
    assert int(found[1]) > MOST_SPLITS


def test_a_search_for_keys_in_a_log_without_index(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "_LONG", 1 << 20)
    with pytest.raises(OptionError, match="raise maxBytesPerPartition"):
        plan_by_keys(store, ranges(store), PlanLimits(max_bytes=1))


def test_queues_are_not_counted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "MOST_SPLITS", 0)
    assert len(plan(store, ranges(store), by="queue")) == 2
