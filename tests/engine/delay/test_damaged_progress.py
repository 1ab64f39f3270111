"""Progress of delays that cannot be: what the log has copies of was delivered, and nothing else."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.layout.fastjson import dump_fastjson, parse_fastjson
from rmqstore_spark.reader import Store
from rmqstore_spark.verify import verify
from tests.support.processes.delaying import delayed, delayed_config, delivered, rows_of
from tests.support.stores.golden import load_records
from tests.support.stores.storing import Clock, until

BEYOND = 1 << 40


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Path:
    """A store that has delivered three messages of two levels; one of each level waits."""
    path = tmp_path / "s"
    with StoreWriter.open(path, delayed_config(), clock=clock) as writer:
        assert writer.put_batch(delayed([b"a", b"b", b"c"], [1, 2, 1])).ok
        clock.now += 5000
        delivered(writer, 3)
        assert writer.put_batch(delayed([b"d", b"e"], [1, 2])).ok
    return path


def change(store: Path, **members: Any) -> None:
    """Change members of the file, and levels of its table."""
    file = store / "config" / "delayOffset.json"
    value: Any = parse_fastjson(file.read_text())
    for name, member in members.items():
        if name == "logOffset":
            value[name] = member
        elif member is None:
            del value["offsetTable"][name.removeprefix("level_")]
        else:
            value["offsetTable"][name.removeprefix("level_")] = member
    file.write_text(dump_fastjson(value))


def delivers_the_rest_once(store: Path, clock: Clock) -> None:
    clock.now += 5000
    with StoreWriter.open(store, delayed_config(), clock=clock) as writer:
        delivered(writer, 2)
        until(lambda: set(writer.stats()["delayedWaiting"].values()) == {0})
    found = Counter(row["body"] for row in rows_of(store, "T"))
    assert found == Counter([b"a", b"b", b"c", b"d", b"e"])


@pytest.mark.parametrize("value", [-1, 1.5, "x", True, [], {}, BEYOND, 1 << 63, None])
def test_a_level_with_an_impossible_offset(
    store: Path, clock: Clock, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    change(store, level_1=value)
    delivers_the_rest_once(store, clock)
    told = [r.getMessage() for r in caplog.records if "delayOffset.json: level 1" in r.getMessage()]
    assert bool(told) == (value is not None)
    saved: Any = parse_fastjson((store / "config" / "delayOffset.json").read_text())
    assert saved["offsetTable"]["1"] == 3


@pytest.mark.parametrize("value", [-1, 1.5, "x", True, BEYOND])
def test_copies_that_are_counted_up_to_an_impossible_place(
    store: Path, clock: Clock, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    change(store, logOffset=value)
    delivers_the_rest_once(store, clock)
    assert any("delayOffset.json: logOffset is" in r.getMessage() for r in caplog.records)


def test_a_key_that_is_no_level_is_left_out_for_good(
    store: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    change(store, x=3, level_0=1)
    delivers_the_rest_once(store, clock)
    assert any("is not a delay level" in record.getMessage() for record in caplog.records)
    saved: Any = parse_fastjson((store / "config" / "delayOffset.json").read_text())
    assert not {"x", "0"} & saved["offsetTable"].keys()


def test_the_older_copy_of_the_file_and_the_log_tell_it_exactly(store: Path, clock: Clock) -> None:
    file = store / "config" / "delayOffset.json"
    assert file.with_name("delayOffset.json.bak").exists()
    file.write_text("[]")
    delivers_the_rest_once(store, clock)


@pytest.mark.parametrize(
    "text", [None, *(f'{{"offsetTable":{{1:{at},2:"x",3:-1}}}}' for at in (-1, BEYOND))]
)
@pytest.mark.parametrize("name", ["delayed", "live"])
def test_what_a_broker_delivered_is_not_delivered_again(
    copy: Callable[[str], Path], golden: Callable[[str], Path], name: str, text: str | None
) -> None:
    """Its copies do not name the messages that waited; here the file that told it is lost."""
    store, records = copy(name) / "store", load_records(golden(name))
    file = store / "config" / "delayOffset.json"
    told: Any = parse_fastjson(file.read_text())["offsetTable"]
    waiting = sum(record.topic == "SCHEDULE_TOPIC_XXXX" for record in records)
    theirs = sum(told.values())
    assert theirs
    if text is None:
        file.unlink()
        file.with_name(f"{file.name}.bak").unlink(missing_ok=True)
    else:
        file.write_text(text)
    clock = Clock(max(record.store_timestamp for record in records) + 3 * 3_600_000)
    with StoreWriter.open(store, clock=clock) as writer:
        until(lambda: set(writer.stats()["delayedWaiting"].values() or [1]) == {0})
        assert writer.stats()["delayedDelivered"] == waiting - theirs


@pytest.mark.parametrize("value", [-1, 1.5, '"x"', "true", 1 << 63])
def test_verify_reports_it(store: Path, value: Any) -> None:
    file = store / "config" / "delayOffset.json"
    file.write_text(re.sub(r"\b1:\d+", f"1:{value}", file.read_text()))
    with Store.open(store) as reader:
        (problem,) = verify(reader, delay_levels="1s 5s 1h").problems
    assert (problem.kind, problem.file, problem.severity) == ("config", str(file), "error")
