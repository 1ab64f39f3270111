"""A commit that takes longer than expected: messages beside it get the time of the clock.

The block comes behind them, so it gets a later time, and is written again.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from rmqstore_spark.base.types import CommitRequest, WriterId
from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.engine.batches import batch_block, writing
from rmqstore_spark.engine.batches.marker import MARKER_TOPIC
from rmqstore_spark.engine.log import commitlog
from rmqstore_spark.layout.checkpoint import Checkpoint
from rmqstore_spark.layout.constants import SCHEDULE_TOPIC
from rmqstore_spark.reader import Store
from rmqstore_spark.verify import verify
from tests.support.messages.batches import (
    QUERY,
    bodies,
    commit_batch,
    expected,
    rows_block,
    scanned,
    shown,
    small_segments,
)
from tests.support.messages.blocks import encoded
from tests.support.processes import forked
from tests.support.processes.beside import PLACES
from tests.support.stores.storing import Clock

LEAP = 20_000
DELAY = 5_000  # of level 2


@pytest.fixture(autouse=True)
def all_batches_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_LARGE", 0)
    monkeypatch.setattr(writing, "_ROOM_PART", 1)  # as much room as the batch has bytes, at most


def at_places(monkeypatch: pytest.MonkeyPatch, act: Callable[[str], object]) -> None:
    for module in (batch_block, writing, commitlog):
        monkeypatch.setattr(module, "reach", lambda name: act(name.removeprefix("commit.")))


def delayed(body: bytes, topic: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "topic": [topic],
            "queueId": pa.array([0], pa.int32()),
            "body": [body],
            "properties": pa.array([b"DELAY\x012"]),
            "bornTimestamp": pa.array([0]),
        }
    )


def times(path: Path) -> dict[bytes, int]:
    """Return the storeTimestamp of each message, by its body."""
    with Store.open(path) as store:
        rows = [row for batch in store.scan() for row in batch.to_pylist()]
    return {row["body"]: round(row["storeTimestamp"].timestamp() * 1000) for row in rows}


@pytest.mark.parametrize("size", ["1048576", "8192"])
@pytest.mark.parametrize("leaps", [1, 3])
def test_what_is_put_beside_it_has_the_time_of_the_clock_and_the_batch_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str, leaps: int
) -> None:
    path, clock = tmp_path / "store", Clock()
    begun, moments = clock.now, list[int]()
    hidden = list[Checkpoint]()

    def put(place: str) -> None:
        if place == "before_sync" and len(moments) < leaps:
            clock.now += LEAP
            assert store.put(rows_block([b"beside %d" % len(moments)], ["others"])).ok
            moments.append(clock.now)
        if place == "before_publish":
            store.flush()
            hidden.append(Checkpoint.decode((path / "checkpoint").read_bytes()))

    with StoreWriter.open(path, small_segments(mappedFileSizeCommitLog=size), clock=clock) as store:
        assert store.put(rows_block([b"first"], ["others"])).ok
        stage = store.batches.begin_stage("0" * 32)
        stage.append(rows_block(bodies("b0", 100)))
        stage.append(encoded(delayed(b"late", "others")))
        at_places(monkeypatch, put)
        result = store.batches.commit(
            CommitRequest(WriterId.of_stream(QUERY, 0), (stage.finish(),))
        )
        assert result.status == "COMMITTED"
        assert len(hidden) == leaps + 1
        # On disk, a block that is not published is later than all that the checkpoint knows of.
        assert all(begun <= seen.physic_msg_timestamp < moments[0] for seen in hidden)
        assert all(seen.logics_msg_timestamp < moments[0] for seen in hidden)
        assert store.put(rows_block([b"behind"], ["others"])).ok
        store.flush()
        published = Checkpoint.decode((path / "checkpoint").read_bytes())
    found = times(path)
    assert [found[b"beside %d" % number] for number in range(leaps)] == moments
    (stored,) = {found[body] for body in bodies("b0", 100)}
    assert found[b"late"] == stored
    assert moments[-1] < stored < moments[-1] + LEAP
    assert published.physic_msg_timestamp == found[b"behind"] >= stored
    with Store.open(path) as store_read:
        assert verify(store_read).errors == 0
        others = store_read.queue("others", 0)
        for number, moment in enumerate(moments):
            assert others.offset_at(moment) == 1 + number  # none of those put since is passed over
        (marker,) = [row for b in store_read.read(MARKER_TOPIC, 0) for row in b.to_pylist()]
        assert json.loads(marker["body"])["storeTimestamp"] == stored
        (waiting,) = [row for b in store_read.read(SCHEDULE_TOPIC, 1) for row in b.to_pylist()]
        assert round(waiting["storeTimestamp"].timestamp() * 1000) == stored
    (entries,) = (path / "consumequeue" / SCHEDULE_TOPIC / "1").iterdir()
    assert int.from_bytes(entries.read_bytes()[12:20], "big") == stored + DELAY
    with StoreWriter.open(path, small_segments(mappedFileSizeCommitLog=size), clock=clock) as store:
        assert commit_one_again(store) == "ALREADY_COMMITTED"


def commit_one_again(store: StoreWriter) -> str:
    stage = store.batches.begin_stage("1" * 32)
    stage.append(rows_block(bodies("b0", 100)))
    stage.append(encoded(delayed(b"late", "others")))
    request = CommitRequest(WriterId.of_stream(QUERY, 0), (stage.finish(),))
    return store.batches.commit(request).status


def test_a_delayed_message_beside_it_is_not_due_too_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock = tmp_path / "store", Clock()

    def put(place: str) -> None:
        if place == "before_publish" and not due:
            clock.now += LEAP
            assert store.put(encoded(delayed(b"delayed", "late"))).ok
            due.append(clock.now + DELAY)

    due = list[int]()
    with StoreWriter.open(path, small_segments(), clock=clock) as store:
        at_places(monkeypatch, put)
        commit_batch(store, 0)
    (entries,) = (path / "consumequeue" / SCHEDULE_TOPIC / "1").iterdir()
    assert int.from_bytes(entries.read_bytes()[12:20], "big") == due[0]


def test_a_commit_that_cannot_be_written_again_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock, seen = tmp_path / "store", Clock(), list[str]()

    def fail(place: str) -> None:
        seen.append(place)
        if place == "before_publish":
            clock.now += LEAP
            assert store.put(rows_block([b"beside"], ["others"])).ok
        if place == "after_portion" and "before_publish" in seen:
            raise ZeroDivisionError

    with StoreWriter.open(path, small_segments(), clock=clock) as store:
        with monkeypatch.context() as broken:
            at_places(broken, fail)
            with pytest.raises(ZeroDivisionError):
                commit_batch(store, 0)
        store.flush()
        end = store.published_end
        for segment in (path / "commitlog").iterdir():
            if segment.name.isdigit():
                assert not any(segment.read_bytes()[max(0, end - int(segment.name)) :])
        assert commit_batch(store, 0, attempt=1).status == "COMMITTED"
    assert scanned(path) == [b"beside", *expected(0)]


@pytest.mark.fault
@pytest.mark.parametrize("size", ["1048576", "8192"])
@pytest.mark.parametrize("place", [*PLACES, "after_filler", "after_publish", "after_sync"])
def test_killed_at_a_place_the_second_time(tmp_path: Path, place: str, size: str) -> None:
    """What was put before it is there, and the batch is whole or not there, and then once."""
    path = tmp_path / "store"
    module, leap = "tests.support.processes.beside", str(LEAP)
    done = forked.run([sys.executable, "-m", module, path, place, size, "9", leap])
    assert done.returncode == -signal.SIGKILL, done.stderr
    names = done.stdout.split()
    assert "leap" in names
    told = [body for name in names for body in bodies(f"other {name}", 1)]
    is_there = place not in (*PLACES, "after_filler")
    assert scanned(path) == [*told, *(expected(0) if is_there else [])]
    with StoreWriter.open(path, small_segments(mappedFileSizeCommitLog=size)) as store:
        status = commit_batch(store, 0, attempt=1).status
        assert status == ("ALREADY_COMMITTED" if is_there else "COMMITTED")
    assert sorted(shown(path).elements()) == sorted(scanned(path))
    assert [row for row in scanned(path) if row in set(expected(0))] == expected(0)
    with Store.open(path) as read:
        assert verify(read).errors == 0
