"""A process that is killed while segments expire: nothing is lost but what was to be removed."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.options import ReadOptions
from rmqstore_spark.verify import verify
from tests.support.messages.batches import BATCH, commit_batch, rows_block, small_segments
from tests.support.processes import forked
from tests.support.processes.expiring import AFTER, BATCHES
from tests.support.processes.surroundings import path_without_pandas
from tests.support.stores.storing import Clock, until

pytestmark = pytest.mark.fault

ROOT = Path(__file__).parents[3]
PLACES = (
    "expiry.after_archive:2", "expiry.before_remove", "expiry.after_remove:2",
    "expiry.after_segment:2", "expiry.after_queue_file:3", "expiry.after_index_file",
)  # fmt: skip


def run_killed(store: Path, archive: Path, place: str) -> int:
    """Let the process be killed at a place; return where the log was to begin."""
    done = forked.run(
        [
            sys.executable, "-m", "tests.support.processes.expiring", store, f"archiveTo={archive}",
            "maxIndexNum=100", "maxHashSlotNum=50",
        ],
        cwd=ROOT,
        env={
            **os.environ, "RMQSTORE_FAILPOINT": place, "PYTHONPATH": path_without_pandas(),
        },
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    return int(done.stdout)


def bodies_of(*path: Path) -> list[tuple[str, int, int, bytes]]:
    """All messages in the queues of a store and its archives."""
    wanted = ReadOptions(columns=("topic", "queueId", "queueOffset", "body"))
    with Store.open(path[0], archives=[str(one) for one in path[1:]]) as store:
        return [
            tuple(row.values())
            for queue in store.queues(["orders", "bills"])
            for batch in store.read(queue.topic, queue.queue_id, options=wanted)
            for row in batch.to_pylist()
        ]


@pytest.mark.parametrize("place", PLACES)
def test_a_kill_between_any_two_removals(place: str, tmp_path: Path) -> None:
    path, archive = tmp_path / "store", tmp_path / "archive"
    begin = run_killed(path, archive, place)
    settings = {"archiveTo": str(archive), "maxIndexNum": "100", "maxHashSlotNum": "50"}
    clock = Clock(AFTER)
    with StoreWriter.open(path, small_segments(**settings), clock=clock) as store:
        assert store.stats()["commitLogMinOffset"] <= begin
        ranges = store.stats()["queues"]
        per_queue = BATCHES * BATCH // 4 + 2 * 40 // 4
        for topic in ("orders", "bills"):
            for queue_id in ("0", "1"):
                assert ranges[topic][queue_id][1] == per_queue, "offsets continue where they were"
        assert commit_batch(store, BATCHES - 1, 1).status == "ALREADY_COMMITTED"
        store.expire(AFTER + 1)
        until(lambda: not store.expirable(AFTER + 1).is_working)
        assert store.stats()["commitLogMinOffset"] == begin
        assert store.put(rows_block([b"more"])).ok
    with Store.open(path) as reader:
        assert verify(reader).ok
        assert reader.min_offset == begin
    with Store.open(archive) as reader:
        assert verify(reader).ok
        assert (reader.min_offset, reader.log.file_end) == (0, begin)
    found = bodies_of(path, archive)
    assert len(found) == BATCHES * BATCH + 2 * 40 + 1
    slots = Counter((topic, queue_id, slot) for topic, queue_id, slot, _ in found)
    assert set(slots.values()) == {1}, "nothing is missing at the seam, and nothing is there twice"
    assert {slot for _, _, slot in slots} == set(range(per_queue + 1))
