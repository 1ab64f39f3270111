"""kill -9 and power cuts while transactions are put and ended: each ends, and once."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from rmqstore_spark.base.types import HalfId
from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.reader import Store
from rmqstore_spark.verify import verify
from tests.fault.power import PoweredDisk, why_no_loop_mounts
from tests.support.processes import forked
from tests.support.processes.delaying import rows_of
from tests.support.processes.halving import ends, half_config, waiting_in
from tests.support.processes.surroundings import path_without_pandas

ROOT = Path(__file__).parents[3]
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
COUNT = 12
PLACES = (
    "transactions.before_half:5", "put.after_write:5", "transactions.before_end:2",
    f"put.after_write:{COUNT + 2}", "transactions.after_end:3", "transactions.after_end:5",
    "consumerOffset.before_write", "transactionChecks.before_write",
    "transactionChecks.after_backup",
)  # fmt: skip


def run_killed(store: Path, place: str) -> list[str]:
    """Let a process put and end transactions until it is killed; return what it has told."""
    done = forked.run(
        [sys.executable, "-m", "tests.support.processes.halving", store, str(COUNT)],
        cwd=ROOT, timeout=300,
        env={**os.environ, "RMQSTORE_FAILPOINT": place, "PYTHONPATH": path_without_pandas()},
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout.splitlines()


def all_halves(store: Path) -> dict[bytes, HalfId]:
    return {
        row["body"]: HalfId(row["queueOffset"], row["physicalOffset"])
        for row in rows_of(store, HALF)
    }


def commit_all(path: Path, told: Counter[str]) -> None:
    """Commit each transaction, and check that each has ended once.

    Args:
        path: the store.
        told: how often the killed process said what it had done.
    """
    with StoreWriter.open(path, half_config()) as store:
        halves = all_halves(path)
        # The progress is written by a thread of its own, at any time after the first one.
        assert len(halves) >= (COUNT if told["committed"] else 1)
        waited = {one.place.queue_offset for one in store.transactions.waiting()}
        answers = dict(zip(halves, ends(store, list(halves.values()), is_commit=True), strict=True))
        assert ends(store, list(halves.values()), is_commit=True) == ["ENDED_BEFORE"] * len(halves)
    for body, half in halves.items():
        expected = "COMMITTED" if half.queue_offset in waited else "ENDED_BEFORE"
        assert answers[body] == expected
    found = Counter(row["body"] for row in rows_of(path, "T"))
    assert set(found.values()) <= {1}, "nothing is committed twice"
    third = COUNT // 3
    done = {b"%d" % number for number in range(told["committed"])}
    undone = (
        {b"%d" % number for number in range(third, 2 * third)} if told["rolled back"] else set()
    )
    assert done <= found.keys(), "nothing that was committed is lost"
    assert not undone & found.keys(), "nothing that was rolled back is visible"
    assert waiting_in(path) == []
    ended = Counter(row["body"] for row in rows_of(path, OP))
    assert ended == Counter(b"%d" % half.queue_offset for half in halves.values())
    with Store.open(path) as reader:
        assert verify(reader).problems == ()


@pytest.mark.parametrize("place", PLACES)
def test_each_ends_once_over_a_kill(place: str, tmp_path: Path) -> None:
    path = tmp_path / "store"
    commit_all(path, Counter(run_killed(path, place)))


@pytest.mark.skipif(bool(why_no_loop_mounts()), reason=why_no_loop_mounts())
@pytest.mark.parametrize("place", ["transactions.after_end:3", "transactionChecks.after_backup"])
def test_each_ends_once_over_a_power_cut(place: str, tmp_path: Path) -> None:
    with PoweredDisk(tmp_path) as disk:
        path = disk.path / "store"
        told = Counter(run_killed(path, place))
        disk.cut_power()
        commit_all(path, told)


@pytest.mark.parametrize("is_progress_lost", [False, True])
def test_a_message_without_its_op_message_is_committed(
    is_progress_lost: bool, tmp_path: Path
) -> None:
    """As after a power cut that left only the first of the two records."""
    path = tmp_path / "store"
    run_killed(path, "transactions.after_end:3")
    with Store.open(path) as reader:
        (last,) = [
            row
            for batch in reader.scan()
            for row in batch.to_pylist()
            if row["topic"] == OP and row["body"] == b"2"
        ]
        end = reader.scan_end()
    offset = last["physicalOffset"]
    with open(path / "commitlog" / f"{offset - offset % 65536:020}", "r+b") as segment:
        segment.seek(offset % 65536)
        segment.write(bytes(end - offset))
    if is_progress_lost:
        for name in ("consumerOffset.json", "transactionChecks.json"):
            (path / "config" / name).unlink(missing_ok=True)
    with StoreWriter.open(path, half_config()) as store:
        waiting = [one.place.queue_offset for one in store.transactions.waiting()]
        assert waiting == list(range(3, COUNT))
        halves = all_halves(path)
        assert ends(store, [halves[b"2"]], is_commit=True) == ["ENDED_BEFORE"]
    assert [row["body"] for row in rows_of(path, "T")] == [b"0", b"1", b"2"]
    assert [row["body"] for row in rows_of(path, OP)] == [b"0", b"1", b"2"]
