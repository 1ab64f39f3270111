"""What a broker counts: messages by topic and group, and by day."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from rmqstore_spark.broker.core.administration import state
from rmqstore_spark.broker.core.administration.state import Days
from rmqstore_spark.broker.core.statistics import Statistics, Sum
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import ask, batch, broker, message, pull
from tests.broker.transactions.halves import half
from tests.support.stores.storing import Clock
from tests.support.waiting import eventually

HOUR = 3600


def view(name: str, key: str) -> Command:
    return Command(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})


def test_what_was_counted_is_told_for_a_minute_an_hour_and_a_day() -> None:
    found = Statistics(0)
    found.count("A", "T", 20)
    found.count("A", "T", 10)
    found.count("A", "once", 7)
    assert found.sums("A", "T", 10) == (Sum(30, 3.0, 15.0),) * 3
    assert found.sums("A", "T", 0) == (Sum(30, 0.0, 15.0),) * 3
    for now in range(10, 26 * HOUR + 1, 10):
        found.count("A", "T", 10)
        found.sample(now)
    ended = 26 * HOUR
    assert found.sums("A", "T", ended) == tuple(
        Sum(seconds, 1.0, 10.0) for seconds in (60, HOUR, 24 * HOUR)
    )
    found.count("A", "T", 20)
    later = found.sums("A", "T", ended + 4)
    assert later is not None
    assert later[0] == Sum(80, 80 / 64, 80 / 7)
    assert found.sums("A", "once", ended) == (Sum(0, 0.0, 0.0),) * 3
    assert found.sums("A", "never", ended) is found.sums("B", "T", ended) is None


def test_counts_are_bounded() -> None:
    found = Statistics(0)
    for n in range(30_001):
        found.count("A", str(n), 1)
    found.count("A", "0", 1)
    assert found.sums("A", "30000", 1) is None
    assert found.sums("A", "0", 1) == (Sum(2, 2.0, 1.0),) * 3


def test_a_day_begins_at_midnight() -> None:
    def at(year: int, month: int, day: int, hour: int, minute: int, second: int) -> int:
        local = (year, month, day, hour, minute, second, 0, 0, -1)
        return int(time.mktime(local)) * 1000 + 500

    def figures() -> list[int]:
        return list(days.figures().values())

    days = Days(at(2026, 12, 30, 12, 0, 0))
    days.sample(at(2026, 12, 30, 23, 59, 59), 5, 1)
    assert figures() == [0, 0, 0, 0]
    days.sample(at(2026, 12, 31, 0, 0, 0), 7, 2)
    days.sample(at(2026, 12, 31, 0, 0, 9), 8, 2)
    assert figures() == [0, 7, 0, 2]
    days.sample(at(2027, 1, 1, 0, 0, 3), 9, 4)
    days.sample(at(2026, 12, 31, 23, 59, 59), 10, 4)
    days.sample(at(2027, 1, 1, 0, 0, 0), 11, 4)
    assert figures() == [7, 9, 2, 4]


def test_the_broker_notices_that_a_day_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def morning() -> list[str]:
        (answer,) = ask(served.address, Command(RequestCode.GET_BROKER_RUNTIME_INFO))
        table = json.loads(answer.body)["table"]
        return [table[f"msg{what}TotalTodayMorning"] for what in ("Put", "Get")]

    monkeypatch.setattr(state, "_SAMPLE_SECONDS", 0.01)
    clock = Clock()
    with broker(tmp_path / "store", clock) as served:
        ask(served.address, batch([b"y", b"z"]))
        served.store.flush()
        ask(served.address, pull(0, maxMsgNums="1"))
        assert morning() == ["0", "0"]
        clock.now += 24 * HOUR * 1000
        eventually(lambda: morning() == ["2", "1"])


def test_what_clients_send_and_get_is_counted(tmp_path: Path) -> None:
    progress = {"consumerGroup": "consumers", "topic": "orders"}
    with broker(tmp_path / "store") as served:
        ask(served.address, message(b"x"), batch([b"y", b"z"]), half(b"perhaps"))
        served.store.flush()
        found, *_ = ask(served.address, pull(0), pull(3), pull(0, subscription="nobody"))
        report = {**progress, "queueId": "0", "commitOffset": "2"}
        _, sent, got, size, *unknown, one, entire = ask(
            served.address,
            Command(RequestCode.UPDATE_CONSUMER_OFFSET, report),
            view("TOPIC_PUT_NUMS", "orders"),
            view("GROUP_GET_NUMS", "orders@consumers"),
            view("GROUP_GET_SIZE", "orders@consumers"),
            view("TOPIC_PUT_NUMS", "new\nline"),
            view("NO_SUCH", "orders"),
            Command(RequestCode.GET_CONSUME_STATS, progress),
            Command(RequestCode.GET_BROKER_CONSUME_STATS),
        )
    kinds = ("statsDay", "statsHour", "statsMinute")
    for answer, total, each in ((sent, 3, 1.5), (got, 3, 3.0), (size, len(found.body), None)):
        told = json.loads(answer.body)
        assert sorted(told) == sorted(kinds)
        for kind in kinds:
            assert told[kind].keys() == {"avgpt", "sum", "tps"}
            assert (told[kind]["sum"], told[kind]["avgpt"]) == (total, each or float(total))
            assert told[kind]["tps"] > 0
    assert [(answer.code, answer.remark) for answer in unknown] == [
        (1, "The stats <TOPIC_PUT_NUMS> <new\\nline> not exist"),
        (1, "The stats <NO_SUCH> <orders> not exist"),
    ]
    assert b'"consumeTps":0.0' not in one.body + entire.body
    assert (one.body + entire.body).count(b'"consumeTps":') == 2
