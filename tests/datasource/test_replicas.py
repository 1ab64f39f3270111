"""A store that several replicas hold, read by their paths: behind, gone, forked, damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from rmqstore_spark.datasource.sources import failover
from rmqstore_spark.errors import CorruptRecordError, DataLossError, OptionError, ReplicaError
from tests.datasource.driving import GrowingStore, Stream, batch_rows, keys_of, plan_batch, rows_in

Row = dict[str, Any]
NAMED: dict[str, Any] = {"brokerNames": "ours", "replicaTimeout": "1s"}


@pytest.fixture
def master(tmp_path: Path) -> GrowingStore:
    """A store of several segments, and of queues in different order."""
    store = GrowingStore(tmp_path / "one", {"orders": 3})
    store.put(1500)
    return store


@pytest.fixture(autouse=True)
def forget() -> None:
    failover._failed_at.clear()


def copied(store: GrowingStore, name: str) -> Path:
    """A replica that has what the store has now."""
    path = store.path.parent / name
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(store.path, path)
    return path


def copied_alike(path: Path) -> Path:
    """Another replica like one."""
    return Path(shutil.copytree(path, f"{path}-too"))


def both(*paths: Path) -> str:
    return "|".join(map(str, paths))


def stream(path: str, checkpoint: list[str] | None = None, **options: Any) -> Stream:
    given = {"startingOffsets": "earliest", **NAMED, **options}
    return Stream(path, checkpoint, **given)


def drained(query: Stream) -> list[Row]:
    return [row for batch in query.drain() for row in batch]


def damage(path: Path, physical: int) -> None:
    """Change a byte of the body of the record at an offset."""
    for file in sorted((path / "commitlog").iterdir(), reverse=True):
        if int(file.name) <= physical:
            with file.open("r+b") as log:
                log.seek(physical - int(file.name) + 90)
                byte = log.read(1)
                log.seek(-1, 1)
                log.write(bytes([byte[0] ^ 1]))
            return


@pytest.mark.parametrize("plan_by", ["queue", "commitlog"])
@pytest.mark.parametrize("schema", [None, StructType([StructField("body", StringType())])])
def test_a_task_goes_on_at_another_replica_where_the_first_one_ends(
    master: GrowingStore, plan_by: str, schema: StructType | None
) -> None:
    """The first one is damaged in the middle of each partition's range."""
    other = copied(master, "other")
    expected = batch_rows(master.path, schema, brokerNames="ours", planBy=plan_by)
    middle = sorted(master.physical.values())[700]
    damage(master.path, middle)
    with pytest.raises(CorruptRecordError):
        batch_rows(master.path, schema, planBy=plan_by)
    options = {"planBy": plan_by, **NAMED}
    assert batch_rows(both(master.path, other), schema, **options) == expected
    # Where no replica has the record whole, `mode` decides, and only then.
    damage(other, middle)
    with pytest.raises(CorruptRecordError):
        batch_rows(both(master.path, other), schema, **options)
    failover._failed_at.clear()
    left = batch_rows(both(master.path, other), schema, mode="DROPMALFORMED", **options)
    assert len(left) == len(expected) - 1
    assert all(row in expected for row in left)


def test_a_task_goes_on_where_only_what_it_has_read_has_expired(tmp_path: Path) -> None:
    master = GrowingStore(tmp_path / "one", {"orders": 1}, segment_size=1 << 20)
    master.put(22_000)
    expected = batch_rows(master.path, brokerNames="ours", planBy="queue")
    other = copied(master, "other")
    min(other.joinpath("commitlog").iterdir()).unlink()
    damage(master.path, master.physical["orders", 0, 15_000])  # in the second batch of rows
    found = batch_rows(both(master.path, other), planBy="queue", **NAMED)
    assert found == expected


@pytest.mark.parametrize("is_as_long", [True, False])
def test_a_task_does_not_read_a_fork(
    master: GrowingStore, tmp_path: Path, is_as_long: bool
) -> None:
    if is_as_long:  # only its last record is another one, of the same size
        fork = copied(master, "fork")
        damage(fork, max(master.physical.values()))
        why = "its log has diverged"
    else:
        other = GrowingStore(tmp_path / "fork", {"orders": 3})
        other.put(1500, seed=5)
        fork, why = other.path, "holds another (message|record)"
    reader, parts = plan_batch(both(master.path, fork), **NAMED)
    shutil.rmtree(master.path)
    with pytest.raises(ReplicaError, match=why):
        rows_in(batch for part in parts for batch in reader.read(part))


def test_a_batch_is_read_at_another_replica_than_it_was_planned_on(master: GrowingStore) -> None:
    other = copied(master, "other")
    expected = batch_rows(master.path, brokerNames="ours")
    reader, parts = plan_batch(both(master.path, other), **NAMED)
    shutil.rmtree(master.path)
    assert rows_in(batch for part in parts for batch in reader.read(part)) == expected
    # And planned there, if the first one is not there at all.
    assert batch_rows(both(master.path, other), **NAMED) == expected


def test_a_batch_is_planned_where_its_positions_are(master: GrowingStore) -> None:
    behind = copied(master, "behind")
    master.put(600)
    wanted: dict[str, Any] = {
        "endingOffsets": '{"orders":{"0":700,"1":700,"2":700}}',
        "subscribe": "orders",
    }
    with pytest.raises(DataLossError):
        batch_rows(behind, **NAMED, **wanted)
    assert len(batch_rows(both(behind, master.path), **NAMED, **wanted)) == 2100


@pytest.mark.parametrize(("first", "start", "found"), [("behind", 600, 300), ("expired", 9, 2073)])
def test_a_stream_starts_where_its_positions_are(
    master: GrowingStore, first: str, start: int, found: int
) -> None:
    lacking = copied(master, first)
    master.put(600)
    for segment in sorted((lacking / "commitlog").iterdir())[:-1] * (first == "expired"):
        segment.unlink()
    wanted = json.dumps({"orders": {str(queue): start for queue in range(3)}})
    options: dict[str, Any] = {"subscribe": "orders", "startingOffsets": wanted}
    with pytest.raises((OptionError, DataLossError)):
        stream(str(lacking), **options).initial()
    assert len(drained(stream(both(lacking, master.path), **options))) == found
    # Where no replica has them, the first one decides.
    with pytest.raises((OptionError, DataLossError), match=f"{start} for|{start}, but"):
        stream(both(lacking, copied_alike(lacking)), **options).initial()


def test_a_stream_goes_on_at_the_other_replica(master: GrowingStore) -> None:
    other = copied(master, "other")
    query = stream(both(master.path, other), maxOffsetsPerTrigger=600)
    first = query.next_batch()
    assert first is not None
    gone = master.path.rename(master.path.parent / "gone")
    query.clock.sleep(60)
    rows = [*first, *drained(query)]
    assert len(rows) == 1500
    assert query.reader._follower._sources.opened[0].url == str(other)
    gone.rename(master.path)
    master.put(300)
    for _ in range(4):  # looked at twice, and the first time only after a pause
        query.clock.sleep(60)
        rows += drained(query)
    assert sorted(keys_of(rows)) == sorted(master.rows)


def test_replicas_may_be_added_removed_and_reordered(master: GrowingStore) -> None:
    checkpoint: list[str] = []
    rows = drained(stream(str(master.path), checkpoint))
    master.put(200)
    other = copied(master, "other")
    for path in (both(other, master.path), str(other), both(master.path, other)):
        rows += drained(stream(path, checkpoint))
        assert sorted(keys_of(rows)) == sorted(master.rows)


def test_a_promised_batch_is_not_planned_on_a_fork(master: GrowingStore, tmp_path: Path) -> None:
    fork = GrowingStore(tmp_path / "fork", {"orders": 3})
    fork.put(1500, body_size=101)
    checkpoint: list[str] = []
    stream(str(master.path), checkpoint).plan_next()
    again = stream(both(fork.path, master.path), checkpoint, committed=0)
    assert drained(again) == drained(stream(str(master.path)))


def test_a_stream_does_not_continue_on_a_fork_of_the_same_sizes(
    master: GrowingStore, tmp_path: Path
) -> None:
    """Only the times of the last messages differ: each at the same place in its log."""
    fork = copied(master, "fork")
    late = min(at for key, at in master.physical.items() if key[2] == 499)
    for file in sorted((fork / "commitlog").iterdir()):
        data = bytearray(file.read_bytes())
        for at in (at for at in master.physical.values() if at >= late):
            place = at - int(file.name)
            if 0 <= place < len(data):
                data[place + 63] ^= 1  # the last byte of storeTimestamp
        file.write_bytes(data)
    checkpoint: list[str] = []
    assert len(drained(stream(str(master.path), checkpoint))) == 1500
    again = stream(both(fork, master.path), checkpoint)
    assert drained(again) == []
    assert again.reader._follower._sources.opened[0].url == str(master.path)
    with pytest.raises(DataLossError, match="a copy that has diverged"):
        drained(stream(both(fork, copied_alike(fork)), checkpoint))


def test_a_replica_that_is_behind_is_not_taken_for_a_loss(master: GrowingStore) -> None:
    behind = copied(master, "behind")
    master.put(300)
    checkpoint: list[str] = []
    assert len(drained(stream(both(master.path, behind), checkpoint))) == 1800
    gone = master.path.rename(master.path.parent / "gone")
    query = stream(both(master.path, behind), checkpoint, failOnDataLoss=False)
    for _ in range(3):
        assert query.next_batch() is None  # it waits, and neither fails nor goes back
        query.clock.sleep(30)
    gone.rename(master.path)
    master.put(100)
    query.clock.sleep(60)
    rows = drained(query)
    assert len(rows) == 100


def test_a_promised_batch_is_planned_where_its_messages_are(master: GrowingStore) -> None:
    """A query was stopped between the plan and the end of a micro-batch."""
    behind = copied(master, "behind")
    master.put(300)
    checkpoint: list[str] = []
    stream(str(master.path), checkpoint).plan_next()
    again = stream(both(behind, master.path), checkpoint, committed=0)
    rows = drained(again)
    assert sorted(keys_of(rows)) == sorted(master.rows)


def test_a_stream_leaves_a_replica_that_stays_behind_and_comes_back(master: GrowingStore) -> None:
    behind = copied(master, "behind")
    query = stream(both(behind, master.path))
    assert len(drained(query)) == 1500
    master.put(300)
    rows: list[Row] = []
    for _ in range(4):  # looked at twice, a second or more apart
        query.clock.sleep(30)
        rows += drained(query)
    assert len(rows) == 300
    shutil.rmtree(behind)
    copied(master, "behind")
    for _ in range(4):
        query.clock.sleep(40)
        assert drained(query) == []
    assert str(behind) in query.reader._follower._sources.opened[0].url


def test_a_replica_that_cannot_be_read_does_not_hide_a_better_one(
    master: GrowingStore, tmp_path: Path
) -> None:
    fork = GrowingStore(tmp_path / "fork", {"orders": 3})
    fork.put(1800, body_size=101)
    checkpoint: list[str] = []
    drained(stream(str(master.path), checkpoint))
    good = tmp_path / "good"
    query = stream(both(fork.path, good, master.path), checkpoint)
    assert drained(query) == []
    assert query.reader._follower._sources.opened[0].url == str(master.path)
    copied(master, "good")
    for _ in range(4):
        query.clock.sleep(40)
        assert drained(query) == []
    assert query.reader._follower._sources.opened[0].url == str(good)


def test_what_names_replicas_wrongly(master: GrowingStore) -> None:
    other = copied(master, "other")
    with pytest.raises(OptionError, match=r"different broker names.*Set option brokerNames"):
        batch_rows(both(master.path, other))
    with pytest.raises(OptionError, match="name each replica of the store once"):
        batch_rows(both(master.path, master.path), **NAMED)
    with pytest.raises(OptionError, match="storePathCommitLog does not work"):
        batch_rows(both(master.path, other), storePathCommitLog="/x", **NAMED)
    with pytest.raises(ReplicaError, match="No replica of ours can be read now"):
        batch_rows(both(master.path / "a", other / "b"), **NAMED)
