"""A commit that is killed, stopped, or fails in the middle: the batch is whole or not there."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.base.types import CommitRequest, WriterId
from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.engine.batches import batch_block as batchblock
from rmqstore_spark.engine.batches import writing
from rmqstore_spark.engine.failpoints import NAMES
from rmqstore_spark.engine.log import commitlog
from rmqstore_spark.errors import RefusedError, StoreWriteError
from rmqstore_spark.layout.checkpoint import Checkpoint
from rmqstore_spark.layout.fields import MIN_RECORD_SIZE
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.growth import LogGrowth
from rmqstore_spark.verify import verify
from tests.support.messages.batches import (
    BATCH,
    QUERY,
    bodies,
    commit_batch,
    expected,
    rows_block,
    scanned,
    shown,
    small_segments,
    stage_batch,
)
from tests.support.messages.traffic import FIRST_TIME
from tests.support.processes import forked
from tests.support.processes.surroundings import path_without_pandas
from tests.support.waiting import eventually

pytestmark = pytest.mark.fault

ONE_SEGMENT = "mappedFileSizeCommitLog=1048576"
MANY_SEGMENTS = "mappedFileSizeCommitLog=8192"
SPILLED = "stagingMemoryBytes=0"
PARTLY_SPILLED = "stagingMemoryBytes=20000"
"""The first stage of a batch and half of the second are in memory, the rest is in files."""
HIDDEN = (
    "before_write", "after_head", "after_portion", "before_sync", "before_publish", "after_filler",
)  # fmt: skip
VISIBLE = ("after_publish", "after_sync", "after_dispatch")
HIDDEN_WRITES = {ONE_SEGMENT: 5, MANY_SEGMENTS: 9}
"""The head, then at least a write for each stage, the marker and each end of a segment."""

IN_THE_SECOND = {"stage.before_write": 9, "commit.after_portion": 6}
"""When the second batch gets to a place: of the first one 6 blocks were staged, and it had 4 or 5
parts. Else it is the second to get there."""

ROOT = Path(__file__).parents[3]


def start(path: Path, first: int, count: int, *settings: str, fail: str = "") -> Any:
    """Start a process that commits batches."""
    return forked.start(
        [
            sys.executable, "-m", "tests.support.processes.committer",
            str(path), str(first), str(count), *settings,
        ],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT,
        env={
            **os.environ, "RMQSTORE_FAILPOINT": fail, "PYTHONPATH": path_without_pandas(),
        },
    )  # fmt: skip


def run_killed(path: Path, *settings: str, fail: str) -> list[str]:
    """Let a process commit batches until it is killed; returns what it acknowledged."""
    process = start(path, 0, 3, *settings, fail=fail)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, errors
    return out.decode().splitlines()


def puts(*numbers: int) -> list[bytes]:
    return [body for n in numbers for body in bodies(f"put{n}", 1)]


def whole_or_nothing(rows: Sequence[bytes]) -> list[int]:
    """The batches among rows, each of which must be there whole and once, in its order."""
    found = []
    at = 0
    for number in range(3):
        if list(rows[at : at + 1]) == puts(number):
            at += 1
        if list(rows[at : at + BATCH]) == expected(number):
            found.append(number)
            at += BATCH
    assert list(rows[at:]) == []
    return found


@pytest.mark.parametrize(
    "settings",
    [(ONE_SEGMENT,), (MANY_SEGMENTS,), (ONE_SEGMENT, SPILLED), (MANY_SEGMENTS, PARTLY_SPILLED)],
    ids=" ".join,
)
@pytest.mark.parametrize(
    "place", [name for name in NAMES if name.startswith(("commit.", "stage.", "ledger."))]
)
def test_killed_at_a_place_the_batch_is_whole_or_not_there_and_then_once(
    tmp_path: Path, place: str, settings: tuple[str, ...]
) -> None:
    path = tmp_path / "store"
    acknowledged = run_killed(path, *settings, fail=f"{place}:{IN_THE_SECOND.get(place, 2)}")
    seen = whole_or_nothing(scanned(path))
    name = place.removeprefix("commit.")
    if place.startswith("commit."):
        assert acknowledged == ["0 COMMITTED"]
        assert seen == ([0] if name in HIDDEN else [0, 1])
    with Store.open(path) as store:
        assert verify(store).errors == 0
    with StoreWriter.open(path, small_segments()) as store:
        committed = [commit_batch(store, number, attempt=1).status for number in range(3)]
        assert committed == [
            "ALREADY_COMMITTED" if number in seen else "COMMITTED" for number in range(3)
        ]
    rows = scanned(path)
    assert sorted(row for row in rows if not row.startswith(b"put")) == sorted(expected(0, 1, 2))
    assert sorted(shown(path).elements()) == sorted(rows)
    with Store.open(path) as store:
        report = verify(store)
        assert (report.errors, report.torn_tail) == (0, None)


@contextmanager
def stopped(path: Path, place: str, *settings: str) -> Iterator[Any]:
    """A live process that stands still in the middle of its second commit."""
    process = start(path, 0, 2, *settings, fail=f"{place}:{IN_THE_SECOND.get(place, 2)}:stop")
    try:
        eventually(lambda: forked.is_stopped(process.pid))
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("settings", [ONE_SEGMENT, MANY_SEGMENTS])
@pytest.mark.parametrize("place", [f"commit.{name}" for name in HIDDEN])
def test_every_reader_of_a_live_store_sees_the_log_end_before_a_hidden_block(
    tmp_path: Path, place: str, settings: str
) -> None:
    path = tmp_path / "store"
    before = [*puts(0), *expected(0), *puts(1)]
    with stopped(path, place, settings) as process:
        with Store.open(path) as store:
            assert store.is_being_written
            tip = LogGrowth(store)
            while tip.moved():
                tip.dispatched(store.dispatched_end())
            report = verify(store)
            assert (report.errors, report.log_end) == (0, store.dispatched_end())
        assert whole_or_nothing(scanned(path)) == [0]
        # What was put just before the commit may not have come into its queue yet.
        assert shown(path) in (Counter(before), Counter(before[:-1]))
        process.send_signal(signal.SIGCONT)
        out, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert out.split() == [b"0", b"COMMITTED", b"1", b"COMMITTED"]
    assert scanned(path) == [*before, *expected(1)]


def test_a_hidden_block_without_queues_beside_it_is_not_seen_either(tmp_path: Path) -> None:
    """The very first commit of a store: nothing but the log can tell where it ends."""
    path = tmp_path / "store"
    process = subprocess.Popen(
        [sys.executable, "-c", (
            "import sys\n"
            "from tests.support.messages.batches import *\n"
            "from rmqstore_spark.engine.store import *\n"
            "commit_batch(StoreWriter.open(sys.argv[1], small_segments()), 0)\n"
        ), path],
        cwd=ROOT, env={**os.environ, "RMQSTORE_FAILPOINT": "commit.before_publish:1:stop"},
    )  # fmt: skip
    try:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert scanned(path) == []
    finally:
        process.kill()
        process.wait()
    assert scanned(path) == []
    with StoreWriter.open(path, small_segments()) as store:
        assert commit_batch(store, 0).physical_offset == 0
    assert scanned(path) == expected(0)


@pytest.mark.parametrize("settings", [ONE_SEGMENT, MANY_SEGMENTS])
def test_a_power_cut_before_the_flush_loses_any_pages_and_the_batch_is_not_there(
    tmp_path: Path, settings: str
) -> None:
    """Pages reach the disk in any order: each that the block touches may be there or not."""
    run_killed(tmp_path / "killed", settings, fail="commit.before_sync:2")
    with Store.open(tmp_path / "killed") as store:
        begin = store.log_end()
        last = [row for batch in store.scan() for row in batch.to_pylist()][-1]
    time = int(last["storeTimestamp"].timestamp() * 1000)
    before = scanned(tmp_path / "killed")
    drawn = random.Random(1)
    for number in range(25):
        path = tmp_path / f"cut{number}"
        shutil.copytree(tmp_path / "killed", path)
        if number % 2:  # the last message before the block is known as flushed, or is not
            (path / "checkpoint").write_bytes(Checkpoint(time, time, 0).encode())
        lost = drawn.choice((0.1, 0.5, 0.9))
        for file in (path / "commitlog").glob("0*"):
            with open(file, "r+b") as log:
                for at in range(0, file.stat().st_size, 4096):
                    first = max(at, begin - int(file.name))
                    if first < at + 4096 and drawn.random() < lost:
                        os.pwrite(log.fileno(), bytes(at + 4096 - first), first)
        assert scanned(path) == before
        with StoreWriter.open(path, small_segments()) as writer:
            assert commit_batch(writer, 0, attempt=1).status == "ALREADY_COMMITTED"
            assert commit_batch(writer, 1, attempt=1).status == "COMMITTED"
        assert scanned(path) == [*before, *expected(1)]
        with Store.open(path) as store:
            assert verify(store).errors == 0


@pytest.mark.parametrize("settings", [ONE_SEGMENT, MANY_SEGMENTS])
def test_a_power_cut_can_tear_the_first_header_of_a_block_at_any_byte(
    tmp_path: Path, settings: str
) -> None:
    """Its own time tells nothing then: a sector, of 512 bytes, can end within or before it.

    What follows can be lost too, or be there: sectors reach the disk in any order.
    """
    run_killed(tmp_path / "killed", settings, fail="commit.before_publish:2")
    with Store.open(tmp_path / "killed") as store:
        begin = store.log_end()
        last = [row for batch in store.scan() for row in batch.to_pylist()][-1]
    time = int(last["storeTimestamp"].timestamp() * 1000)
    before = scanned(tmp_path / "killed")
    (tmp_path / "killed" / "checkpoint").write_bytes(Checkpoint(time, time, 0).encode())
    for torn, rest in product(range(30, 70), (MIN_RECORD_SIZE, 1 << 20)):
        path = tmp_path / f"torn{torn}"
        shutil.copytree(tmp_path / "killed", path)
        for file in (path / "commitlog").glob("0*"):
            first, end = (max(0, begin + at - int(file.name)) for at in (torn, rest))
            with open(file, "r+b") as log:
                os.pwrite(log.fileno(), bytes(max(0, min(end, file.stat().st_size) - first)), first)
        assert scanned(path) == before
        with Store.open(path) as store:
            assert (store.log_end(), verify(store).errors) == (begin, 0)
        with StoreWriter.open(path, small_segments()) as writer:
            assert writer.recovery.log_end == begin
        assert scanned(path) == before
        shutil.rmtree(path)


class FailingWrites:
    """Makes the operating system fail one write, or one flush, of the CommitLog."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, code: int) -> None:
        self.countdown = -1
        self.calls: list[tuple[str, int, int]] = []
        real: dict[str, Callable[..., Any]] = {n: getattr(os, n) for n in ("pwritev", "fdatasync")}

        def call(which: str, fd: int, *more: Any) -> Any:
            file = os.readlink(f"/proc/self/fd/{fd}")
            if "/commitlog/" not in file:
                return real[which](fd, *more)
            at = int(os.path.basename(file)) + more[1] if which == "pwritev" else -1
            size = sum(map(len, more[0])) if which == "pwritev" else 0
            self.calls.append((which, at, size))
            if which == name and self.countdown >= 0:
                self.countdown -= 1
                if self.countdown < 0:
                    raise OSError(code, os.strerror(code))
            return real[which](fd, *more)

        for which in real:
            monkeypatch.setattr(os, which, lambda fd, *more, w=which: call(w, fd, *more))


def log_bytes(path: Path, offset: int) -> bytes:
    """The whole log from an offset on."""
    files = sorted((path / "commitlog").glob("0*"))
    data = b"".join(f.read_bytes() for f in files)
    return data[offset - int(files[0].name) :] if files else b""


def test_the_head_is_hidden_later_segments_come_first_and_the_magic_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is written with the first record's magic zero, flushed, then the magic, and flushed."""
    with StoreWriter.open(tmp_path / "store", small_segments()) as store:
        assert store.put(rows_block(bodies("a", 3))).ok
        store.flush()
        infos = stage_batch(store, "b0")
        seen = FailingWrites(monkeypatch, "", 0)
        store.batches.commit(CommitRequest(WriterId.of_stream(QUERY, 0), infos))
        monkeypatch.undo()
    head, *rest = seen.calls
    begin = head[1]
    assert head == ("pwritev", begin, 91)
    hidden = rest[: next(n for n, call in enumerate(rest) if call[0] == "fdatasync")]
    places = [at for _, at, size in hidden if size > 8]  # blanks close segments that are not full
    assert len({at // 8192 for at in places}) > 4
    assert places == sorted(places, reverse=True)
    assert places[-1] == begin
    published = [n for n, call in enumerate(rest) if call == ("pwritev", begin + 4, 4)]
    assert len(published) == 1
    flushes = [n for n, call in enumerate(rest) if call[0] == "fdatasync"]
    assert flushes[0] < published[0] < flushes[-1]
    assert not [c for c in rest[flushes[0] :] if c[0] == "pwritev" and c != rest[published[0]]]


def test_the_checkpoint_never_covers_a_block_that_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others flush while a block is hidden; a clock that stands still gives it a time of its own.

    A recovery takes what is cut below the checkpoint's times for damage, and stops.
    """
    path = tmp_path / "store"
    while_hidden: dict[str, Checkpoint] = {}

    def flushed_checkpoint() -> Checkpoint:
        store.flush()
        return Checkpoint.decode((path / "checkpoint").read_bytes())

    def look(place: str) -> None:
        if place.removeprefix("commit.") in HIDDEN:
            while_hidden[place] = flushed_checkpoint()

    with StoreWriter.open(path, small_segments(), clock=lambda: FIRST_TIME) as store:
        assert store.put(rows_block(bodies("a", 3))).ok
        for module in (batchblock, writing, commitlog):
            monkeypatch.setattr(module, "reach", look)
        commit_batch(store, 0)
        published = flushed_checkpoint()
    with Store.open(path) as read:
        times = [t.value // 1000 for b in read.scan() for t in b.column("storeTimestamp")]
    assert times == [FIRST_TIME] * 3 + [FIRST_TIME + 1] * (BATCH + 1)
    assert len(while_hidden) == len(HIDDEN)
    for place, seen in while_hidden.items():
        assert (seen.physic_msg_timestamp, seen.logics_msg_timestamp) == (times[0],) * 2, place
        assert seen.index_msg_timestamp <= times[0], place
    assert (published.physic_msg_timestamp, published.logics_msg_timestamp) == (times[-1],) * 2


@pytest.mark.parametrize("memory", ["", SPILLED, PARTLY_SPILLED])
@pytest.mark.parametrize("settings", [ONE_SEGMENT, MANY_SEGMENTS])
def test_a_full_disk_in_the_middle_leaves_the_log_as_it_was_and_the_store_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, memory: str
) -> None:
    """For every write of the commit in turn, until it goes through."""
    path = tmp_path / "store"
    config = small_segments(**dict(given.split("=") for given in (settings, memory) if given))
    with StoreWriter.open(path, config) as store:
        assert store.put(rows_block(bodies("a", 3))).ok
        end = int(store.stats()["commitLogMaxOffset"])
        writes = FailingWrites(monkeypatch, "pwritev", errno.ENOSPC)
        request = CommitRequest(WriterId.of_stream(QUERY, 0), stage_batch(store, "b0"))
        for number in range(HIDDEN_WRITES[settings]):
            writes.countdown, writes.calls = number, []
            with pytest.raises(RefusedError, match="No space left") as raised:
                store.batches.commit(request)
            assert raised.value.status == "SERVICE_NOT_AVAILABLE"
            assert not any(log_bytes(path, end))
            assert int(store.stats()["commitLogMaxOffset"]) == end
        writes.countdown = -1
        assert store.batches.commit(request).status == "COMMITTED"
        assert store.put(rows_block(bodies("b", 3))).ok
    assert scanned(path) == bodies("a", 3) + expected(0) + bodies("b", 3)
    with Store.open(path) as read:
        assert verify(read).errors == 0


@pytest.mark.parametrize("settings", [ONE_SEGMENT, MANY_SEGMENTS])
@pytest.mark.parametrize("memory", ["", PARTLY_SPILLED])
@pytest.mark.parametrize("call", ["pwritev", "fdatasync"])
def test_a_failed_write_or_flush_stops_the_store_and_the_batch_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, memory: str, call: str
) -> None:
    config = small_segments(**dict(given.split("=") for given in (settings, memory) if given))
    for number in range(100):
        path = tmp_path / f"store{number}"
        with StoreWriter.open(path, config) as store:
            assert store.put(rows_block(bodies("a", 3))).ok
            infos = stage_batch(store, "b0")
            with pytest.MonkeyPatch.context() as patch:
                writes = FailingWrites(patch, call, errno.EIO)
                writes.countdown = number
                try:
                    store.batches.commit(CommitRequest(WriterId.of_stream(QUERY, 0), infos))
                except (RefusedError, StoreWriteError) as error:
                    refused = isinstance(error, RefusedError)
                else:
                    break
            assert store.state == "FAILED"
            assert store.put(rows_block(bodies("b", 1))).status.value == "SERVICE_NOT_AVAILABLE"
        rows = scanned(path)
        assert rows in ([*bodies("a", 3)], [*bodies("a", 3), *expected(0)])
        if refused:
            assert rows == bodies("a", 3)
        with StoreWriter.open(path, config) as store:
            commit_batch(store, 0, attempt=1)
        assert scanned(path) == [*bodies("a", 3), *expected(0)]
    assert number >= (2 if call == "fdatasync" else 4)


def test_stages_are_there_after_a_commit_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StoreWriter.open(tmp_path / "store", small_segments()) as store:
        infos = stage_batch(store, "b0")
        held = store.stats()["stagedBytes"]
        writes = FailingWrites(monkeypatch, "pwritev", errno.ENOSPC)
        writes.countdown = 3
        with pytest.raises(RefusedError):
            store.batches.commit(CommitRequest(WriterId.of_stream(QUERY, 0), infos))
        assert (store.stats()["stages"], store.stats()["stagedBytes"]) == (3, held)
        store.batches.abort([info.stage_id for info in infos])
        assert (store.stats()["stages"], store.stats()["stagedBytes"]) == (0, 0)


def test_stages_that_changed_on_the_disk_are_not_committed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with StoreWriter.open(path, small_segments(stagingMemoryBytes="0")) as store:
        infos = stage_batch(store, "b0")
        file = path / "rmqstore" / "staging" / infos[1].stage_id / "records"
        data = bytearray(file.read_bytes())
        data[-3] ^= 1
        file.write_bytes(data)
        with pytest.raises(RefusedError, match="its bytes have changed"):
            store.batches.commit(CommitRequest(WriterId.of_stream(QUERY, 0), infos))
        assert not any(log_bytes(path, 0))
        assert commit_batch(store, 0, attempt=1).status == "COMMITTED"
    assert scanned(path) == expected(0)


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["default", "none"])
def test_a_commit_of_a_gigabyte_takes_little_memory(tmp_path: Path, memory: str) -> None:
    config = "StoreConfig()" if memory == "default" else "StoreConfig(staging_memory_bytes=0)"
    script = (
        "import sys, numpy as np\n"
        "from tests.support.messages.batches import *\n"
        "from rmqstore_spark.engine.store import StoreWriter\n"
        "from rmqstore_spark.engine.config.store_config import StoreConfig\n"
        "from rmqstore_spark.base.types import CommitRequest\n"
        "from rmqstore_spark.engine.batches.ledger import WriterId\n"
        "data = rows_block([b'%090d' % n for n in range(30_000)])\n"
        f"with StoreWriter.open(sys.argv[1], {config}) as store:\n"
        "    stage = store.batches.begin_stage('0' * 32)\n"
        "    while stage.info.bytes < 1 << 30: stage.append(data)\n"
        "    store.batches.commit(CommitRequest(WriterId.of_one_write(), (stage.finish(),)))\n"
        # Its own peak: that of getrusage counts the process it was forked from too.
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "print(status['VmHWM'].split()[0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "store"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    assert int(done.stdout) < 400 * 1024


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.97])
def test_a_batch_that_lost_its_end_goes_as_a_whole(
    tmp_path: Path, share: float, *, cut: bool
) -> None:
    """What is left of it has no marker, so Spark writes all of it again."""
    path, before = tmp_path / "store", tmp_path / "before"
    with StoreWriter.open(path, small_segments()) as store:
        store.put(rows_block(bodies("a", 3)))
    shutil.copytree(path, before)
    with StoreWriter.open(path, small_segments()) as store:
        done = commit_batch(store, 0)
        end = int(store.stats()["commitLogMaxOffset"])
    # Killed as soon as the batch was to be seen: nothing else tells that it was on disk.
    shutil.copy(before / "checkpoint", path / "checkpoint")
    shutil.rmtree(path / "rmqstore")
    shutil.copytree(before / "rmqstore", path / "rmqstore")
    (path / "abort").touch()
    lost = done.physical_offset + int((end - done.physical_offset) * share)
    for segment in sorted((path / "commitlog").glob("0*")):
        if (begin := max(lost - int(segment.name), 0)) < 8192:
            segment.write_bytes(segment.read_bytes()[:begin] + bytes(8192 - begin))
    with StoreWriter.open(path, small_segments(), cut=cut) as store:
        assert int(store.stats()["commitLogMaxOffset"]) == done.physical_offset
        assert commit_batch(store, 0).status == "COMMITTED"
    assert scanned(path) == bodies("a", 3) + expected(0)
    with Store.open(path) as read:
        assert verify(read).ok


def test_a_part_of_a_batch_that_an_earlier_start_accepted_stays(tmp_path: Path) -> None:
    """A slave of RocketMQ that became the master within a batch; its store is then killed."""
    path = tmp_path / "store"
    with StoreWriter.open(path, small_segments()) as store:
        commit_batch(store, 0)
    with Store.open(path) as read:
        places = [row["physicalOffset"] for batch in read.scan() for row in batch.to_pylist()]
    end = places[len(places) // 2]
    for name in ("checkpoint", "rmqstore", "consumequeue", "index"):
        (shutil.rmtree if (path / name).is_dir() else os.unlink)(path / name)
    for segment in sorted((path / "commitlog").glob("0*")):
        kept = max(end - int(segment.name), 0)
        if not kept:
            segment.unlink()
        elif kept < 8192:
            segment.write_bytes(segment.read_bytes()[:kept] + bytes(8192 - kept))
    with StoreWriter.open(path, small_segments()):
        pass
    (path / "abort").touch()
    with StoreWriter.open(path, small_segments()) as store:
        assert int(store.stats()["commitLogMaxOffset"]) == end
    assert scanned(path) == expected(0)[: len(places) // 2]
