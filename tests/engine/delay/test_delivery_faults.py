"""kill -9 during the delivery of delayed messages: each is delivered, and once."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.reader import Store
from rmqstore_spark.verify import verify
from tests.fault.power import PoweredDisk, why_no_loop_mounts
from tests.support.processes import forked
from tests.support.processes.delaying import delayed, delayed_config, delivered, rows_of
from tests.support.processes.surroundings import path_without_pandas
from tests.support.stores.storing import Clock, until

ROOT = Path(__file__).parents[3]
PLACES = (
    "delay.before_append", "put.after_write:2", "put.after_dispatch:2", "delay.after_append",
    "delayOffset.before_write:2", "delayOffset.after_backup",
)  # fmt: skip
COUNT = 50


def run_killed(store: Path, place: str, first: int) -> None:
    """Let a process put messages of one second, and be killed at a place."""
    done = forked.run(
        [sys.executable, "-m", "tests.support.processes.delaying", store, str(first), str(COUNT)],
        cwd=ROOT,
        env={**os.environ, "RMQSTORE_FAILPOINT": place, "PYTHONPATH": path_without_pandas()},
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr


def waits(store: Path) -> int:
    return len(rows_of(store, "SCHEDULE_TOPIC_XXXX"))


@pytest.mark.parametrize("place", PLACES)
def test_each_is_delivered_once_over_a_kill(place: str, tmp_path: Path) -> None:
    path = tmp_path / "store"
    run_killed(path, place, 0)
    put = waits(path)
    with StoreWriter.open(path, delayed_config()) as store:
        assert store.put_batch(delayed([b"last"], 1)).ok
        delivered(store, 1 if place.startswith(("delay.after", "put", "delayOffset")) else put)
        delivered_once(store, put + 1)
    found = Counter(row["body"] for row in rows_of(path, "T"))
    assert set(found.values()) == {1}, "nothing is delivered twice"
    assert len(found) == put + 1, "nothing is lost"
    with Store.open(path) as reader:
        assert verify(reader, delay_levels="1s 5s 1h").problems == ()


@pytest.mark.skipif(bool(why_no_loop_mounts()), reason=why_no_loop_mounts())
@pytest.mark.parametrize("place", ["delay.after_append", "delayOffset.after_backup"])
def test_each_is_delivered_once_over_a_power_cut(place: str, tmp_path: Path) -> None:
    with PoweredDisk(tmp_path) as disk:
        path = disk.path / "store"
        run_killed(path, place, 0)
        disk.cut_power()
        dispatched = waits(path)
        with StoreWriter.open(path, delayed_config()) as store:
            # The log can have been written to the disk further than the queues.
            put = store.stats()["queues"]["SCHEDULE_TOPIC_XXXX"]["0"][1]
            assert put >= dispatched
            assert store.put_batch(delayed([b"last"], 1)).ok
            delivered(store, 1)
            delivered_once(store, put + 1)
        found = Counter(row["body"] for row in rows_of(path, "T"))
    assert set(found.values()) == {1}
    assert len(found) == put + 1


def delivered_once(store: StoreWriter, count: int) -> None:
    """Wait until nothing waits any more in level 1."""
    until(lambda: store.stats()["delayedWaiting"].get("1") == 0)
    assert store.stats()["queues"]["SCHEDULE_TOPIC_XXXX"]["0"][1] == count


def test_the_log_alone_tells_what_was_delivered(tmp_path: Path) -> None:
    path, clock = tmp_path / "s", Clock()
    with StoreWriter.open(path, delayed_config(), clock=clock) as store:
        assert store.put_batch(delayed([b"a", b"b", b"c"], [1, 2, 1])).ok
        clock.now += 5000
        delivered(store, 3)
    (path / "config" / "delayOffset.json").unlink()
    (path / "config" / "delayOffset.json.bak").unlink(missing_ok=True)
    with StoreWriter.open(path, delayed_config(), clock=clock) as store:
        assert store.put_batch(delayed([b"d"], 1)).ok
        clock.now += 1000
        delivered(store, 1)
        delivered_once(store, 3)
    assert sorted(row["body"] for row in rows_of(path, "T")) == [b"a", b"b", b"c", b"d"]
