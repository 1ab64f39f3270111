"""Arguments of the jobs that write: topics, rates, options of the sink."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from rmqstore_spark.errors import OptionError
from rmqstore_spark.pipelines.replay import Slices
from rmqstore_spark.pipelines.targets import TopicMap, target_options
from rmqstore_spark.pipelines.tasks import Pace


@pytest.mark.parametrize(
    ("rules", "topic", "written"),
    [
        ([], "orders", "orders"),
        (["orders=orders_2"], "orders", "orders_2"),
        (["orders=orders_2"], "orders_eu", "orders_eu"),
        (["*=copy_*"], "orders", "copy_orders"),
        (["eu-*=*-eu", "*=other"], "eu-orders", "orders-eu"),
        (["eu-*=*-eu", "*=other"], "us-orders", "other"),
        (["%RETRY%*=retry_*"], "%RETRY%cg|a", "retry_cg|a"),
        (["a=b", "a=c"], "a", "b"),
    ],
)
def test_topics_are_mapped(rules: list[str], topic: str, written: str) -> None:
    assert TopicMap.parse(rules)(topic) == written


@pytest.mark.parametrize("rule", ["orders", "=x", "x=", "*a*=b", "a=*b*", "orders=copy_*"])
def test_a_rule_that_is_none(rule: str) -> None:
    with pytest.raises(OptionError, match="OLD=NEW"):
        TopicMap.parse([rule])


def test_a_rule_for_a_topic_that_is_not_read() -> None:
    read = {"orders": 4, "orders_eu": 2, "audit": 1}
    assert TopicMap.parse(["orders=x", "orders*=x"]).queues(read) == {"x": 4, "audit": 1}
    assert TopicMap.parse(["retry*=x"]).queues(read) == read
    with pytest.raises(
        OptionError, match=r"--map order=x matches no topic that is read: audit, ord"
    ):
        TopicMap.parse(["order=x"]).queues(read)


class Clock:
    """A clock that advances only by waiting."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


def batches(*sizes: int) -> Iterator[pa.RecordBatch]:
    first = 0
    for size in sizes:
        yield pa.RecordBatch.from_pydict({"n": list(range(first, first + size))})
        first += size


def test_a_pace_is_kept_and_no_row_is_lost() -> None:
    clock = Clock()
    pace = Pace(1_000, clock, clock.wait)
    seen: list[int] = []
    for batch in pace(batches(5_000, 1, 2_500)):
        seen += batch.column("n").to_pylist()
        # At most as many rows as the rate allows so far, plus the latest piece.
        assert len(seen) <= (clock.now - 100.0) * 1_000 + 101
    assert seen == list(range(7_501))
    assert clock.now == pytest.approx(107.501)  # the last row's time too


def test_what_was_late_is_not_made_up_for() -> None:
    clock = Clock()
    pace = Pace(10, clock, clock.wait)(batches(1, 1, 1))
    next(pace)
    clock.wait(60)
    next(pace)
    before = clock.now
    next(pace)
    assert clock.now - before == pytest.approx(0.1)


def test_a_pace_travels_to_tasks() -> None:
    sent = pickle.loads(pickle.dumps(Pace(1e6)))
    assert sum(len(batch) for batch in sent(batches(10))) == 10


def options_of(*texts: str) -> dict[str, str]:
    return target_options("rmq://127.0.0.1:1", texts, streaming=True)


def test_options_of_the_sink_are_checked() -> None:
    given = options_of("aclFile=/a=b", "preserve=true")
    assert given == {
        "endpoint": "rmq://127.0.0.1:1",
        "queueSelector": "column",
        "aclFile": "/a=b",
        "preserve": "true",
    }
    assert options_of("queueSelector=hash")["queueSelector"] == "hash"
    for wrong in ("preserve", "preserv=true", "preserve=perhaps", "Topic=a", "endpoint=b"):
        with pytest.raises(OptionError):
            options_of(wrong)


def test_slices_remember_what_is_written(tmp_path: Path) -> None:
    slices = Slices(str(tmp_path / "checkpoint"))
    assert slices.plan() is None
    assert slices.done() == set()
    plan = slices.make_plan({"store": "a"}, [10, 20])
    again = Slices(str(tmp_path / "checkpoint"))
    assert again.plan() == plan
    again.mark(0)
    again.mark(2)
    assert slices.done() == {0, 2}
    slices.check(plan, {"store": "a"})
    with pytest.raises(OptionError, match="other arguments"):
        slices.check(plan, {"store": "b"})
