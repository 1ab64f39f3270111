"""Files that may not grow, descriptors that run out, a disk that is slow, a clock that is wrong."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count as numbers_from
from itertools import islice
from pathlib import Path

import pytest

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.client import StoreClient
from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.options import ReadOptions
from tests.fault.claims import Claims
from tests.fault.messages import block, read_numbers
from tests.fault.remote import RemoteWriter, serve
from tests.fault.rounds.life import SMALL, live, settle
from tests.fault.stores import commit, settings, with_topics
from tests.fault.traces import injecting, why_no_strace
from tests.support.processes.serving import eventually
from tests.support.stores.storing import Clock, as_killed

pytestmark = pytest.mark.fault

traced = pytest.mark.skipif(bool(why_no_strace()), reason=why_no_strace())


# ---- short writes --------------------------------------------------------------------------------


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """Let writes past a place fail, and those over it be short, in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [60_001, 131_072, 200_003])
def test_a_write_to_the_log_is_short(tmp_path: Path, size: int) -> None:
    """Promises 1, 3 and 5: what was cut short is not acknowledged, all before is there."""
    claims, path = Claims(), tmp_path / "store"
    with with_topics(path, settings(mappedFileSizeCommitLog=1 << 18)) as store:
        claims.begin("put", 0, 17)
        assert store.put(block(0, 17)).ok
        claims.done("put", 0)
        with no_file_longer_than(size):
            result = store.put(block(17, 17))
            claims.begin("put", 17, 17)
            while result.ok:
                claims.done("put", claims.operations[-1].first)
                first = claims.next_number
                claims.begin("put", first, 17)
                result = store.put(block(first, 17))
        assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
        assert "File too large" in result.remark
        assert store.put(block(10_000, 1)).status is PutStatus.SERVICE_NOT_AVAILABLE
    claims.begin("put", 10_000, 1)
    settle(path)
    claims.check(path)


@pytest.mark.parametrize("size", [500, 3_000, 60_000])
def test_a_file_of_any_kind_cannot_grow(tmp_path: Path, size: int) -> None:
    """Promises 1, 2 and 3: queues, index, stages, segments and configuration, as they come."""
    claims, path = Claims(), tmp_path / "store"
    limited = ["prlimit", f"--fsize={size}"]
    ending = live(path, claims, 1, operations=30, prefix=limited)
    assert ending.code in (1, 3)
    assert "Traceback" not in ending.errors
    assert "File too large" in ending.refusal + ending.errors
    again = live(path, claims, 2, operations=10)
    assert again.code == 0, again.errors
    claims.check(path)


# ---- descriptors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [16, 24])
def test_too_many_open_files(tmp_path: Path, count: int) -> None:
    """Promises 1, 2 and 3: it continues with few, reports that, or waits for more."""
    claims, path = Claims(), tmp_path / "store"
    limited = ["prlimit", f"--nofile={count}"]
    ending = live(path, claims, 1, operations=30, prefix=limited, kill_after_s=10)
    assert "Traceback" not in ending.errors
    if ending.code:
        assert "Too many open files" in ending.refusal + ending.errors
    again = live(path, claims, 2, operations=10)
    assert again.code == 0, again.errors
    claims.check(path)


def test_a_process_whose_descriptors_run_out(tmp_path: Path) -> None:
    """It refuses what it cannot do, and loses nothing of what it acknowledged."""
    store, claims = tmp_path / "store", Claims()
    with serve(store) as process:
        writer = RemoteWriter(process.endpoint, claims)
        writer.make_topics()
        writer.put(60)
        pid = process.process.pid
        used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        for spare in (3, 0):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + spare, hard))
            for _ in range(2):
                writer.put(400)
        assert writer.failures > 0
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
        with StoreClient(process.endpoint) as client:
            # What waits for a descriptor counts as lacking room until it is tried again.
            eventually(lambda: client.stats()["state"] in ("RUNNING", "FAILED"))
    assert live(store, claims, 1, operations=5).code == 0
    claims.check(store)


# ---- a slow disk ---------------------------------------------------------------------------------


@traced
def test_a_flush_that_takes_longer_than_its_time_limit(tmp_path: Path) -> None:
    """Promise 1: FLUSH_DISK_TIMEOUT says that the messages are in the log, and they stay there."""
    claims, path = Claims(), tmp_path / "store"
    late = ["strace", "-f", "-qq", "-o", str(tmp_path / "log"), "-e", "trace=fdatasync"]
    late += ["-e", "inject=fdatasync:delay_enter=600000"]
    slow = (*SMALL, "flushDiskType=SYNC_FLUSH", "syncFlushTimeout=100")
    ending = live(path, claims, 1, settings=slow, operations=2, commits=0.0, prefix=late)
    assert ending.refusal.startswith("FLUSH_DISK_TIMEOUT")
    assert ending.code == 3
    settle(path)
    claims.operations[0].done = True  # stored, if late
    claims.check(path)


@traced
def test_puts_that_a_slow_disk_holds_up_are_refused_as_busy(tmp_path: Path) -> None:
    """Promise 1: OS_PAGECACHE_BUSY says that nothing was stored, and nothing is."""
    claims, path = Claims(), tmp_path / "store"
    with serve(path, 0, "osPageCacheBusyTimeOutMills=50") as process:
        writer = RemoteWriter(process.endpoint, claims)
        writer.make_topics()
        writer.put(60)
        pid, calls = process.process.pid, "pwritev,pwritev2"
        with injecting(pid, tmp_path / "log", calls, "delay_enter=400000"):
            firsts, acks = numbers_from(1000, 1000), dict[int, str]()
            with (
                StoreClient(process.endpoint, retries=0) as client,
                ThreadPoolExecutor(4) as threads,
            ):

                def both_have_come() -> bool:
                    some = list(islice(firsts, 4))
                    acks.update(
                        zip(some, threads.map(partial(put_once, client), some), strict=True)
                    )
                    return set(acks.values()) >= {"PUT_OK", "OS_PAGECACHE_BUSY"}

                eventually(both_have_come)  # those of a round need not meet
        for first, status in acks.items():
            if status == "PUT_OK":
                claims.begin("put", first, 60)
                claims.done("put", first)
        assert set(acks.values()) == {"PUT_OK", "OS_PAGECACHE_BUSY"}
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
    with Store.open(path) as store:
        found = {n for numbers in read_numbers(store).values() for n in numbers}
    assert found == {n for operation in claims.operations for n in operation.numbers}


def put_once(client: StoreClient, first: int) -> str:
    """Put 60 messages; the status."""
    try:
        with client.put_stream() as stream:
            return stream.put(block(first, 60)).status
    except RefusedError as error:
        return error.status


# ---- a clock that is wrong -----------------------------------------------------------------------


@pytest.mark.parametrize("later", [0, 1, 1_699_999_000_000, 1_700_000_000_000 + 3 * 10**11])
def test_a_clock_that_is_wrong_after_a_kill(tmp_path: Path, later: int) -> None:
    """Promises 1 and 3: back to 1970, by a little, and years ahead; times and offsets go up."""
    claims, path = Claims(), tmp_path / "store"
    clock = Clock(1_700_000_000_000)
    with with_topics(tmp_path / "first", settings(), clock=clock) as store:
        for first in (0, 40, 80):
            claims.begin("put", first, 40)
            assert store.put(block(first, 40)).ok
            claims.done("put", first)
            clock.now += 1000
        store.flush()
        as_killed(tmp_path / "first", path)
    clock.now = later
    for first in (120, 160):
        with StoreWriter.open(path, settings(), clock=clock) as store:
            claims.begin("put", first, 40)
            assert store.put(block(first, 40)).ok
            claims.done("put", first)
            commit(store, first, first + 20_000, 5)
    times = []
    with Store.open(path) as reader:
        options = ReadOptions(columns=("storeTimestamp",))
        for batch in reader.read("orders-0", 0, options=options):
            times += batch["storeTimestamp"].cast("int64").to_pylist()
    assert times == sorted(times)
    for first in (120, 160):
        claims.begin("commit", first + 20_000, 5)
        claims.done("commit", first + 20_000)
    outcome = claims.compare(path)
    assert (outcome.lost, outcome.doubled) == (0, 0)
