"""A follower against a master that is a plain socket: every way in which a stream can go wrong."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.base.types import CommitRequest, WriterId
from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.ha.follower import LogFollower
from tests.ha.peers import PlainMaster, caught_up, following, frames, log_bytes, queue_files
from tests.support.messages.batches import commit_batch, rows_block, small_segments
from tests.support.waiting import eventually

NO_PAUSE = {"ha_send_heartbeat_interval": 50}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A store with messages and batches over several segments, and its log."""
    path = tmp_path_factory.mktemp("source") / "store"
    with StoreWriter.open(path, small_segments()) as store:
        for turn in range(6):
            assert store.put(rows_block([f"{turn}/{n}".encode() * 9 for n in range(40)])).ok
            commit_batch(store, turn)
        end = store.published_end
    return path, log_bytes(path, 0, end)


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A store without batches, so that a copy of its log can end at any of its messages."""
    path = tmp_path_factory.mktemp("messages") / "store"
    with StoreWriter.open(path, small_segments()) as store:
        for turn in range(15):
            assert store.put(rows_block([f"{turn}/{n}".encode() * 9 for n in range(40)])).ok
        end = store.published_end
    return path, log_bytes(path, 0, end)


class Script:
    """What a master sends on each connection, one after the other; the last one again and again."""

    def __init__(self, *parts: Any) -> None:
        self._parts = list(parts)
        self._lock = threading.Lock()

    def __call__(self, connection: socket.socket, first: int) -> None:
        with self._lock:
            part = self._parts.pop(0) if len(self._parts) > 1 else self._parts[0]
        for data in part(first):
            connection.sendall(data)
        if getattr(part, "ends", False):
            connection.shutdown(socket.SHUT_RDWR)


def whole(log: bytes, size: int = 3000) -> Any:
    return lambda first: frames(log, first, size)


def cut_after(log: bytes, end: int, count: int) -> Any:
    """The log up to an offset, and so many bytes of the next frame."""

    def part(first: int) -> Iterator[bytes]:
        yield from frames(log[:end], first, 3000)
        yield next(frames(log, end, 3000))[:count]

    part.ends = True  # type: ignore[attr-defined]
    return part


def stopped(follower: LogFollower) -> str:
    """Why a follower has stopped; waits for that."""
    eventually(lambda: follower.standing().state == "STOPPED")
    return str(follower.failure)


def _holds(store: StoreWriter, end: int) -> bool:
    return store.replica.end >= end


def test_a_connection_that_is_cut_at_any_byte_of_a_header_and_within_a_body(
    source: tuple[Path, bytes], tmp_path: Path
) -> None:
    path, log = source
    cuts = [*range(13), 12 + 1, 12 + 8, 12 + 90, 3011]
    step = len(log) // (len(cuts) + 1)
    parts = [cut_after(log, step * turn, count) for turn, count in enumerate(cuts, start=1)]
    script = Script(*parts, whole(log))
    with PlainMaster(script) as master, following(tmp_path, master.address) as (store, _):
        caught_up(store, len(log))
    assert master.connections == len(cuts) + 1
    assert log_bytes(tmp_path, 0, len(log)) == log
    assert queue_files(tmp_path) == queue_files(path)


def test_a_store_that_is_opened_again_compares_and_goes_on(
    messages: tuple[Path, bytes], tmp_path: Path
) -> None:
    path, log = messages
    got = 0
    for end in (0, 5000, 8192, 9000, len(log) - 1, len(log)):
        with (
            PlainMaster(Script(whole(log[:end]))) as master,
            following(tmp_path, master.address) as (store, follower),
        ):
            least = end if end == len(log) else end - 1000
            eventually(partial(_holds, store, least))
            assert follower.failure is None
            got = store.replica.end
        assert not got or log_bytes(tmp_path, 0, got) == log[:got]
    assert got == len(log)
    assert queue_files(tmp_path) == queue_files(path)


def test_an_observer_repeats_its_first_report(source: tuple[Path, bytes], tmp_path: Path) -> None:
    _, log = source
    with PlainMaster(Script(whole(log))) as master:
        with following(tmp_path, master.address, **NO_PAUSE) as (store, _):
            caught_up(store, len(log))
            eventually(lambda: len(master.reports) > 4)
        assert set(master.reports) == {1}


@pytest.mark.parametrize("acknowledge", ["true", "received"])
def test_a_slave_that_counts_reports_what_it_has(
    source: tuple[Path, bytes], tmp_path: Path, acknowledge: str
) -> None:
    _, log = source
    with PlainMaster(Script(whole(log))) as master:
        with following(tmp_path, master.address, ha_acknowledge=acknowledge) as (store, _):
            eventually(lambda: len(log) in master.reports)
            if acknowledge == "true":
                assert store.flush()["flushedOffset"] == len(log)
        assert master.reports == sorted(master.reports)


@pytest.mark.threat("Replication")
def test_a_fork_is_refused_and_nothing_of_it_is_stored(
    messages: tuple[Path, bytes], tmp_path: Path
) -> None:
    _, log = messages
    with (
        PlainMaster(Script(whole(log[:20_000]))) as master,
        following(tmp_path, master.address) as (store, _),
    ):
        eventually(lambda: store.replica.end > 15_000)
    other = bytearray(log)
    other[store.replica.end - 5] ^= 1
    with (
        PlainMaster(Script(whole(bytes(other)))) as master,
        following(tmp_path, master.address) as (again, follower),
    ):
        text = stopped(follower)
        assert again.replica.end == store.replica.end
    assert f"differs at physical offset {store.replica.end - 5}" in text
    assert f"holds a log up to {store.replica.end}" in text
    assert "--restart-from earliest" in text


def test_an_empty_follower_whose_master_sends_nothing_says_what_that_means(
    source: tuple[Path, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With report 1, a master whose log begins later is not to be told from an empty one."""
    monkeypatch.setattr("rmqstore_spark.ha.session._SILENT_CHECK_S", 0.01)
    _, log = source
    told = threading.Event()

    def serve(connection: socket.socket, first: int) -> None:
        assert first == 1
        connection.sendall(struct.pack(">qi", first, 0))
        assert told.wait(60)
        for data in frames(log, first, 3000):
            connection.sendall(data)

    words = "sends nothing from physical offset 1 onwards. Its log is empty or begins later"
    with PlainMaster(serve) as master, following(tmp_path, master.address) as (store, follower):
        eventually(lambda: words in caplog.text)
        assert "set haFrom to where it begins" in caplog.text
        eventually(lambda: words in follower.standing().error)  # `rmqstore stats` shows it
        told.set()
        caught_up(store, len(log))
        assert follower.standing().error == ""
        assert follower.failure is None
    assert caplog.text.count(words) == 1


def heartbeats_at(offset: int) -> Any:
    return lambda _first: [struct.pack(">qi", offset, 0)] * 2


@pytest.mark.parametrize("behind", ["heartbeats as asked", "heartbeats at its end", "begins later"])
def test_a_master_with_another_range_stops_the_follower_with_both_offsets(
    messages: tuple[Path, bytes], tmp_path: Path, behind: str
) -> None:
    _, log = messages
    with (
        PlainMaster(Script(whole(log[:20_000]))) as master,
        following(tmp_path, master.address) as (store, _),
    ):
        eventually(lambda: store.replica.end > 15_000)
    end = store.replica.end
    script: Any = {
        "heartbeats as asked": lambda first: [struct.pack(">qi", first, 0)],
        "heartbeats at its end": heartbeats_at(8192),
        "begins later": lambda _first: frames(log, 24_576, 1000),
    }[behind]
    with (
        PlainMaster(Script(script)) as master,
        following(tmp_path, master.address) as (_, follower),
    ):
        text = stopped(follower)
    assert f"holds a log up to {end}" in text
    asked = {"heartbeats at its end": "8192", "begins later": "24576"}.get(behind, "has nothing at")
    assert asked in text


def test_a_master_that_begins_later_is_followed_from_where_it_begins(
    source: tuple[Path, bytes], tmp_path: Path
) -> None:
    _, log = source
    with PlainMaster(Script(lambda _first: frames(log, 16_384, 1000))) as master:
        with following(tmp_path / "latest", master.address, ha_from="latest") as (store, _):
            caught_up(store, len(log))
        with following(tmp_path / "number", master.address, ha_from="16384") as (store, _):
            caught_up(store, len(log))
    assert master.reports == [0, 16_384]
    for name in ("latest", "number"):
        assert log_bytes(tmp_path / name, 16_384, len(log)) == log[16_384:]
    with StoreWriter.open(tmp_path / "latest", small_segments()) as store:
        assert store.recovery.clean
        assert not store.recovery.cuts


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is not a frame"),
        (struct.pack(">qi", -5, 10), "is not a frame"),
        (struct.pack(">qi", 1, 2**31 - 1), "is not a frame"),
        (struct.pack(">qi", 1, 400) + bytes(range(256)) + bytes(144), "not a CommitLog"),
        # A record that says it has 1 GiB (its first byte, 0x40, does not come: byte 0 is 0).
        (struct.pack(">qi", 0, 8) + struct.pack(">iI", 1 << 30, 0xDAA320A7), "not a CommitLog"),
    ],
)
def test_garbage_is_refused_and_stops_the_follower_if_it_persists(
    tmp_path: Path, sent: bytes, words: str
) -> None:
    with (
        PlainMaster(Script(lambda _first: [sent])) as master,
        following(tmp_path, master.address) as (store, follower),
    ):
        assert words in stopped(follower)
        assert store.replica.end == 0
    assert master.connections == 3


@pytest.mark.threat("Replication")
@pytest.mark.parametrize("field", [0, 4, 28, 84, 88])
def test_a_record_that_lies_is_refused_with_its_place(
    source: tuple[Path, bytes], tmp_path: Path, field: int
) -> None:
    """totalSize, magic, physicalOffset, bodyLength and body of a record."""
    _, log = source
    second = int.from_bytes(log[:4], "big")
    other = bytearray(log[:4096])
    other[second + field + (3 if field < 88 else 0)] ^= 1
    with (
        PlainMaster(Script(whole(bytes(other)))) as master,
        following(tmp_path, master.address) as (store, follower),
    ):
        text = stopped(follower)
        assert store.replica.end in (0, second)
    assert f"physical offset {second}" in text


def test_another_segment_size_is_told(source: tuple[Path, bytes], tmp_path: Path) -> None:
    _, log = source
    for size in (4096, 65_536):
        with PlainMaster(Script(whole(log))) as master:
            given = {"mapped_file_size_commit_log": size}
            with following(tmp_path / str(size), master.address, **given) as (_, follower):
                text = stopped(follower)
        assert "segments have another size" in text
        assert "mappedFileSizeCommitLog" in text


def test_a_log_that_begins_within_a_segment_is_refused(
    source: tuple[Path, bytes], tmp_path: Path
) -> None:
    """A broker's slave puts its bytes at the beginning of a segment."""
    _, log = source
    with (
        PlainMaster(Script(whole(log))) as master,
        following(tmp_path, master.address, ha_from="5000") as (store, follower),
    ):
        assert "5000, which is not a multiple of this store's segment size" in stopped(follower)
        assert store.replica.is_empty


def test_a_silent_master_is_left_and_asked_again(
    source: tuple[Path, bytes], tmp_path: Path
) -> None:
    _, log = source
    silent: Any = lambda first: list(frames(log[:6000], first, 3000))  # noqa: E731
    with PlainMaster(Script(silent, whole(log))) as master:
        given = {"ha_housekeeping_interval": 300}
        with following(tmp_path, master.address, **given) as (store, _):
            caught_up(store, len(log))
    assert master.connections >= 2


def test_a_slow_master_is_followed(source: tuple[Path, bytes], tmp_path: Path) -> None:
    """A frame takes several times as long as a master may be silent."""
    _, log = source
    size = int.from_bytes(log[:4], "big")

    def slow(first: int) -> Iterator[bytes]:
        (frame,) = frames(log[:size], first, size)
        step = len(frame) // 20
        for at in range(0, len(frame), step):
            time.sleep(0.05)
            yield frame[at : at + step]

    with PlainMaster(Script(slow)) as master:
        given = {"ha_housekeeping_interval": 300}
        with following(tmp_path, master.address, **given) as (store, follower):
            caught_up(store, size)
            assert follower.failure is None
    assert log_bytes(tmp_path, 0, size) == log[:size]


def test_a_slave_takes_nothing_from_clients(tmp_path: Path) -> None:
    with following(tmp_path, "127.0.0.1:9") as (store, follower):
        result = store.put(rows_block([b"one"]))
        assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
        assert "127.0.0.1:9" in result.remark
        for change in (
            lambda: store.batches.commit(CommitRequest(WriterId("stream", "q", 0), ())),
            lambda: store.create_topic("orders"),
            lambda: store.delete_topic("orders"),
        ):
            with pytest.raises(RefusedError, match="SERVICE_NOT_AVAILABLE"):
                change()
        eventually(lambda: "127.0.0.1:9" in follower.standing().error)


def test_a_topic_that_was_deleted_and_made_again_loses_its_older_entries(tmp_path: Path) -> None:
    master_path = tmp_path / "master"
    with StoreWriter.open(master_path, small_segments()) as master:
        assert master.put(rows_block([b"old%d" % n for n in range(40)], ("orders",))).ok
        master.delete_topic("orders")
        assert master.put(rows_block([b"new%d" % n for n in range(4)], ("orders",))).ok
        end = master.published_end
    log = log_bytes(master_path, 0, end)
    with (
        PlainMaster(Script(whole(log, 500))) as plain,
        following(tmp_path / "slave", plain.address) as (store, _),
    ):
        caught_up(store, end)
    assert queue_files(tmp_path / "slave") == queue_files(master_path)
    config = small_segments()
    StoreWriter.open(tmp_path / "slave", config, rebuild=True).close()
    assert queue_files(tmp_path / "slave") == queue_files(master_path)


def test_times_that_go_back_lower_those_of_the_checkpoint(tmp_path: Path) -> None:
    now = [10_000_000]
    path = tmp_path / "master"
    with StoreWriter.open(path, small_segments(), clock=lambda: now[0]) as store:
        store.put(rows_block([b"late"]))
        first = store.published_end
    now[0] = 1_000_000
    with StoreWriter.open(tmp_path / "other", small_segments(), clock=lambda: now[0]) as store:
        store.put(rows_block([b"early"]))
        second = log_bytes(tmp_path / "other", 0, store.published_end)
    moved = bytearray(second)
    moved[28:36] = first.to_bytes(8, "big")
    log = log_bytes(path, 0, first) + bytes(moved)
    with (
        PlainMaster(Script(whole(log))) as master,
        following(tmp_path / "slave", master.address) as (slave, _),
    ):
        eventually(lambda: slave.replica.end == len(log))
    # It says what is on disk: recovery would take a torn record with an earlier time for damage.
    checkpoint = (tmp_path / "slave" / "checkpoint").read_bytes()
    assert int.from_bytes(checkpoint[:8], "big") == 1_000_000
