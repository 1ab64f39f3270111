"""A Spark batch at a follower: all of it or nothing, wherever the stream of its master is cut."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.layout.constants import BORNHOST_V6_FLAG, STOREHOST_V6_FLAG
from rmqstore_spark.layout.record.format import batch_ends, decode_records, write_batch_end
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.reader import Store
from rmqstore_spark.verify import (
    VerifyReport,
    check_unit,
    make_plan,
    verify_plan,
)
from tests.ha.peers import PlainMaster, following, frames, log_bytes, log_files, queue_files
from tests.ha.test_follower import Script, cut_after, stopped, whole
from tests.support.messages.batches import (
    commit_batch,
    expected,
    rows_block,
    scanned,
    shown,
    small_segments,
)
from tests.support.waiting import PATIENCE, eventually


@dataclass
class Source:
    """A store with messages and batches, which span segments.

    Attributes:
        path: of the store.
        log: its bytes.
        batches: where each batch begins and ends.
    """

    path: Path
    log: bytes
    batches: list[tuple[int, int]]

    def is_whole(self, end: int) -> bool:
        """Whether a log with this end has all of each batch or nothing."""
        return not any(first < end < last for first, last in self.batches)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    path = tmp_path_factory.mktemp("source") / "store"
    batches = []
    with StoreWriter.open(path, small_segments()) as store:
        for turn in range(4):
            if turn != 2:  # two batches, one after the other
                assert store.put(rows_block([f"{turn}/{n}".encode() * 9 for n in range(25)])).ok
            first = commit_batch(store, turn).physical_offset
            batches.append((first, store.published_end))
        end = store.published_end
    return Source(path, log_bytes(path, 0, end), batches)


def slave(path: Path) -> StoreWriter:
    config = small_segments()
    return StoreWriter.open(
        path, StoreConfig(**{**vars(config), "broker_role": "SLAVE", "ha_master_address": "h:1"})
    )


def pieces(log: bytes, begin: int, sizes: list[int]) -> Iterator[bytes]:
    """A log from an offset on, in pieces of these sizes, again and again."""
    while begin < len(log):
        for size in sizes:
            yield log[begin : begin + size]
            begin += size


def take(store: StoreWriter, log: bytes, sizes: list[int]) -> None:
    """Give a replica its log in pieces of these sizes."""
    waiting = b""
    for piece in pieces(log, store.replica.end, sizes):
        waiting += piece
        waiting = waiting[store.replica.append(np.frombuffer(waiting, np.uint8)) :]


def feed(store: StoreWriter, log: bytes, sizes: list[int], source: Source, most: int) -> None:
    """Give a replica its log as from a connection that ends after some pieces."""
    waiting = b""
    for number, piece in enumerate(pieces(log, store.replica.end, sizes)):
        if number == most:
            break
        waiting += piece
        waiting = waiting[store.replica.append(np.frombuffer(waiting, np.uint8)) :]
        assert source.is_whole(store.published_end)
    store.replica.rewind()


@settings(max_examples=25, deadline=None)
@given(
    cuts=st.lists(
        st.tuples(st.lists(st.integers(1, 9000), min_size=1, max_size=4), st.integers(1, 12)),
        max_size=5,
    )
)
def test_no_reader_sees_a_part_of_a_batch_however_the_stream_is_cut(
    source: Source, tmp_path_factory: pytest.TempPathFactory, cuts: list[tuple[list[int], int]]
) -> None:
    path = tmp_path_factory.mktemp("slave") / "store"
    with slave(path) as store:
        for sizes, most in cuts:
            feed(store, source.log, sizes, source, most)
        feed(store, source.log, [2000, 7000], source, len(source.log))
        assert store.published_end == len(source.log)
    assert log_bytes(path, 0, len(source.log)) == source.log
    assert queue_files(path) == queue_files(source.path)
    shutil.rmtree(path)


@pytest.mark.parametrize("missing", [1, 400, 5000])
def test_a_slave_that_is_promoted_within_a_batch_takes_it_once(
    source: Source, tmp_path: Path, missing: int
) -> None:
    """The master is lost before the batch is whole, and its writer commits it again."""
    first, last = source.batches[-1]
    path = tmp_path / "slave"
    with (
        PlainMaster(Script(cut_after(source.log, last - missing, 0))) as master,
        following(path, master.address) as (store, _),
    ):
        eventually(lambda: store.replica.held > first)
        assert store.published_end == first
        assert scanned(path)[-25:] == [f"3/{n}".encode() * 9 for n in range(25)]
        assert not set(shown(path)) & set(expected(3))
    with StoreWriter.open(path, small_segments()) as store:
        assert store.published_end == first
        assert commit_batch(store, 3).status == "COMMITTED"
        assert commit_batch(store, 3, attempt=1).status == "ALREADY_COMMITTED"
    found = shown(path)
    assert {body: found[body] for body in expected(3)} == dict.fromkeys(expected(3), 1)


def test_a_batch_that_was_cut_comes_again_as_a_whole(source: Source, tmp_path: Path) -> None:
    first, last = source.batches[1]
    script = Script(cut_after(source.log, (first + last) // 2, 100), whole(source.log))
    with PlainMaster(script) as master:
        with following(tmp_path, master.address) as (store, _):
            eventually(lambda: store.published_end == len(source.log))
        assert master.reports[0] == 1
        assert master.connections == 2
    assert shown(tmp_path) == shown(source.path)


def test_another_batch_in_the_place_of_one_that_never_became_whole(
    source: Source, tmp_path: Path
) -> None:
    """Nothing of the one before is left behind the log's end."""
    first, last = source.batches[0]
    after = source.log[first:last]
    head = int.from_bytes(after[:4], "big")
    with slave(tmp_path) as store:
        feed(store, source.log[: last - 1], [3000], source, 1000)
        assert store.published_end == first
        other = np.frombuffer(after[:head], np.uint8).copy()
        other[76:84] = 0  # the same record, but not that of a batch
        assert store.replica.append(other) == head
        assert store.published_end == first + head
    assert not any(log_bytes(tmp_path, first + head, last))


@pytest.mark.parametrize("wrong", [-1, 1, 1 << 40])
def test_a_batch_that_lies_about_its_end_is_not_hidden_for_long(
    source: Source, tmp_path: Path, wrong: int
) -> None:
    """The message that follows shows that the batch does not reach so far."""
    first, last = source.batches[0]
    log = np.frombuffer(source.log, np.uint8).copy()
    write_batch_end(log, first, last + wrong)
    with slave(tmp_path) as store:
        take(store, log.tobytes(), [3000])
        assert store.published_end == len(source.log)
    assert shown(tmp_path) == shown(source.path)


@dataclass
class Torn:
    """A store whose log holds a part of a batch, and more behind it.

    Attributes:
        path: of the store.
        log: its bytes.
        after: where the message ends that follows the part of the batch.
    """

    path: Path
    log: bytes
    after: int


@pytest.fixture(scope="module")
def torn(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Torn:
    """A log with the first half of a batch, as of a slave of RocketMQ that became the master."""
    first, last = source.batches[0]
    path = tmp_path_factory.mktemp("torn") / "store"
    (path / "commitlog").mkdir(parents=True)
    log, end, size = source.log, first, 8192
    while end < (first + last) // 2:
        end += int.from_bytes(log[end : end + 4], "big")
    for at in range(0, end, size):
        data = log[at : min(end, at + size)]
        (path / "commitlog" / f"{at:020d}").write_bytes(data.ljust(size, b"\0"))
    with StoreWriter.open(path, small_segments()) as store:
        assert store.published_end == end
        assert store.put(rows_block([b"after"])).ok
        after = store.published_end
        commit_batch(store, 7)
        end = store.published_end
    return Torn(path, log_bytes(path, 0, end), after)


def verified(path: Path, unit_bytes: int = 1 << 30) -> VerifyReport:
    """What a verification in parts of at least this size reports."""
    with Store.open(path) as store:
        plan = make_plan(store, unit_bytes=unit_bytes)
        return verify_plan(
            store,
            plan,
            lambda snapshot, units: (check_unit(store, snapshot, unit) for unit in units),
        )


@pytest.mark.parametrize("unit_bytes", [1, 1 << 30])
def test_verify_reports_a_part_of_a_batch(source: Source, torn: Torn, unit_bytes: int) -> None:
    first, last = source.batches[0]
    assert not verified(source.path, unit_bytes).problems
    report = verified(torn.path, unit_bytes)
    (problem,) = [found for found in report.problems if found.kind == "batch"]
    assert (problem.severity, problem.offset) == ("note", first % 8192)
    assert f"should end at {last}" in problem.text
    assert not report.errors


@pytest.mark.parametrize("unit_bytes", [1, 1 << 30])
def test_only_a_part_of_a_batch_has_void_entries(
    source: Source, torn: Torn, tmp_path: Path, unit_bytes: int
) -> None:
    path = tmp_path / "store"
    shutil.copytree(torn.path, path)
    with Store.open(path) as store:
        rows = [row for part in store.scan() for row in part.to_pylist()]
    places = [row["physicalOffset"] for row in rows]
    first = places.index(source.batches[0][0])
    after = next(n for n, place in enumerate(places) if place >= torn.after) - 1
    assert places[after] // 8192 > places[first] // 8192  # so it lies in several units of one file

    def make_void(row: dict[str, Any]) -> tuple[str, int]:
        at = row["queueOffset"] * 20 + 12
        with Store.open(path) as store:
            segment = store.queue(row["topic"], row["queueId"]).segments.locate(at)
        with Path(segment.path).open("r+b") as opened:
            opened.seek(at - segment.start)
            opened.write((2**63 - 1).to_bytes(8, "big"))
        return segment.path, at - segment.start

    for row in rows[first:after]:
        make_void(row)
    report = verified(path, unit_bytes)
    assert not report.errors
    assert report.counts["voidEntries"] == after - first
    wrong = [make_void(rows[n]) for n in (after, after + 2, len(rows) - 1)]
    found = [each for each in verified(path, unit_bytes).problems if each.severity == "error"]
    assert [each.kind for each in found] == ["tags-code"] * 3
    assert [(each.file, each.offset) for each in found] == wrong
    assert f"the record at {places[after]} is void" in found[0].text
    make_void(rows[0])  # what said where its batch ends may have expired
    assert verified(path, unit_bytes).errors == 3


def test_verify_reports_a_batch_that_the_log_ends_in(torn: Torn, tmp_path: Path) -> None:
    path = tmp_path / "store"
    shutil.copytree(torn.path, path)
    log = np.frombuffer(torn.log, np.uint8).copy()
    with Store.open(torn.path) as store:
        rows = [row["physicalOffset"] for part in store.scan() for row in part.to_pylist()]
    head = next(row for row in rows if row >= torn.after)
    write_batch_end(log, head, len(log) + 1)
    file = path / "commitlog" / f"{head // 8192 * 8192:020d}"
    with file.open("r+b") as opened:
        opened.seek(head % 8192)
        opened.write(log[head : head + 84].tobytes())
    report = verified(path)
    found = [problem for problem in report.problems if problem.kind == "batch"]
    assert [problem.offset for problem in found][-1] == head % 8192
    assert f"none of it from {len(log)} on" in found[-1].text


@settings(max_examples=15, deadline=None)
@given(sizes=st.lists(st.integers(1, 9000), min_size=1, max_size=4))
def test_a_part_of_a_batch_that_the_master_has_is_copied_as_it_is(
    torn: Torn, tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    path = tmp_path_factory.mktemp("slave") / "store"
    with slave(path) as store:
        take(store, torn.log[: torn.after], sizes)
        assert store.published_end == torn.after  # the message shows that no more of it comes
        take(store, torn.log, sizes)
        assert store.published_end == len(torn.log)
    assert queue_files(path) == queue_files(torn.path)
    shutil.rmtree(path)


def test_reports_never_fall_while_the_first_batch_of_a_log_is_not_whole(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "source", small_segments()) as store:
        commit_batch(store, 0)
        end = store.published_end
    log = log_bytes(tmp_path / "source", 0, end)

    def in_halves(asked: int) -> Iterator[bytes]:
        yield from frames(log[: end // 2], asked, 3000)
        eventually(lambda: len(master.reports) > 3)
        yield from frames(log, end // 2, 3000)

    settings = {"ha_acknowledge": "true", "ha_send_heartbeat_interval": 20}
    with (
        PlainMaster(Script(in_halves)) as master,
        following(tmp_path / "slave", master.address, **settings) as (store, _),
    ):
        eventually(lambda: bool(master.reports) and master.reports[-1] == end)
        assert store.published_end == end
    assert master.connections == 1
    assert set(master.reports) == {1, end}


def test_damage_within_a_batch_stops_the_follower_before_it(source: Source, tmp_path: Path) -> None:
    first, last = source.batches[1]
    log, sound = bytearray(source.log), (first + last) // 2
    log[sound + 2000] ^= 0x10
    opened: Future[StoreWriter] = Future()  # the follower asks before the store is known here

    def in_two_parts(asked: int) -> Iterator[bytes]:
        yield from frames(bytes(log[:sound]), asked, 3000)
        replica = opened.result(PATIENCE).replica
        eventually(lambda: replica.held > first)
        yield from frames(bytes(log), sound, 3000)

    with (
        PlainMaster(Script(in_two_parts)) as master,
        following(tmp_path, master.address) as (store, follower),
    ):
        opened.set_result(store)
        assert "not a CommitLog" in stopped(follower)
        assert store.published_end == first
        assert master.connections == 3
    assert log_bytes(tmp_path, 0, first) == source.log[:first]
    assert not any(log_bytes(tmp_path, first, first - first % 8192 + 8192))


def test_a_store_that_is_closed_within_a_batch_keeps_nothing_of_it(
    source: Source, tmp_path: Path
) -> None:
    first, last = source.batches[0]
    with slave(tmp_path) as store:
        store.replica.append(np.frombuffer(source.log[: last - 1], np.uint8))
        assert store.replica.held > first
    files = log_files(tmp_path)
    assert max(map(int, files)) <= first
    assert not any(log_bytes(tmp_path, first, max(map(int, files)) + 8192))
    assert not (tmp_path / "rmqstore" / "cut").exists()


def test_a_batch_that_cannot_be_read_back_fails_the_store(source: Source, tmp_path: Path) -> None:
    last = source.batches[0][1]
    with slave(tmp_path) as store:
        count = store.replica.append(np.frombuffer(source.log[: last - 1], np.uint8))
        for file in (tmp_path / "commitlog").iterdir():
            file.unlink()
        with pytest.raises(RefusedError, match="cannot be read back"):
            store.replica.append(np.frombuffer(source.log[count:last], np.uint8))
        assert store.state == "FAILED"


@given(
    end=st.integers(0, (1 << 63) - 1),
    at=st.integers(0, (1 << 63) - 1),
    hosts=st.tuples(st.booleans(), st.booleans()),
)
def test_the_end_of_a_batch_is_read_as_it_was_written(
    end: int, at: int, hosts: tuple[bool, bool]
) -> None:
    data = with_wide_hosts(rows_block([b"one"]), *hosts)
    write_batch_end(data, 0, end)
    records = decode_records(data, np.zeros(1, np.int64), np.array([len(data)], np.int32))
    assert batch_ends(records, np.array([at - len(data)], np.int64)).tolist() == [
        end if end >= at else 0
    ]


def with_wide_hosts(record: U1, born: bool, store: bool) -> U1:
    """The same record with IPv6 addresses, of zeros, for one host or both."""
    whole = record.tobytes()
    if store:
        whole = whole[:64] + bytes(12) + whole[64:]
    if born:
        whole = whole[:48] + bytes(12) + whole[48:]
    data = np.frombuffer(len(whole).to_bytes(4, "big") + whole[4:], np.uint8).copy()
    data[39] |= born * BORNHOST_V6_FLAG | store * STOREHOST_V6_FLAG
    return data
