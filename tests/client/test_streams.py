"""Streams of blocks: windows, overload, acknowledgements, stages."""

from __future__ import annotations

import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from rmqstore_spark.client import StoreClient, pauses
from rmqstore_spark.client.blockstream import BlockStream, _Lane
from rmqstore_spark.errors import RefusedError, ServiceError
from rmqstore_spark.reader import Store
from rmqstore_spark.wire.messages import CommitRequest, WriterId
from tests.support.processes.serving import Served, block_of, eventually, served
from tests.support.waiting import PATIENCE, NewThreads

STREAMS_THREADS = ("rmqstore-watch", "rmqstore-acknowledgements")


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "store", os_page_cache_busy_time_out_mills=20) as found:
        found.store.create_topic("orders")
        yield found


@contextmanager
def overloaded(here: Served) -> Iterator[None]:
    """While it lasts, somebody holds the log and others are answered OS_PAGECACHE_BUSY."""
    holding, enough = threading.Event(), threading.Event()

    def hold() -> None:
        with here.store._appender.appending():
            holding.set()
            enough.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert holding.wait(10)
    try:
        yield
    finally:
        enough.set()
        holder.join()


def bodies(here: Served) -> list[bytes]:
    here.store.flush()
    with Store.open(here.store.path) as store:
        return [b for batch in store.scan() for b in batch.column("body").to_pylist()]


def test_what_an_overloaded_store_refused_is_sent_again_in_order(
    here: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "_FIRST_WAIT", 0.01)
    monkeypatch.setattr(pauses, "_LONGEST_WAIT", 0.05)
    sent = [b"%d" % number for number in range(40)]
    with StoreClient(here.endpoint, retries=30) as client, client.put_stream() as stream:
        stream.put(block_of(sent[:1]))
        with overloaded(here):
            for body in sent[1:20]:
                stream.send(block_of([body]))
            eventually(lambda: stream._must_begin_again)
        for body in sent[20:]:
            stream.send(block_of([body]))
        assert stream.finish() == 40
    assert bodies(here) == sent


def test_a_client_that_still_writes_when_it_is_refused_learns_why(
    here: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, take = threading.Event(), BlockStream._take

    def take_late(stream: BlockStream, lane: Any) -> None:
        written.wait(PATIENCE)
        take(stream, lane)

    monkeypatch.setattr(BlockStream, "_take", take_late)
    block = block_of([b"a"])

    def put(client: StoreClient) -> None:
        with client.put_stream() as stream:
            try:
                stream.send(block)
                eventually(lambda: here.store.stats()["putFailures"]["OS_PAGECACHE_BUSY"])
                for _ in range(1000):
                    stream.send(block)
            finally:
                written.set()
            stream.drain()

    busy = pytest.raises(RefusedError, match="busy")
    with StoreClient(here.endpoint, retries=0) as client, overloaded(here), busy:
        put(client)
    assert bodies(here) == []


def test_an_overloaded_store_is_told_when_patience_ends(here: Served) -> None:
    with StoreClient(here.endpoint, retries=1) as client, overloaded(here):
        with pytest.raises(RefusedError) as failure, client.put_stream() as stream:
            stream.put(block_of([b"a"]))
        assert failure.value.status == "OS_PAGECACHE_BUSY"
    assert bodies(here) == []


def test_a_window_bounds_what_is_on_its_way(here: Served) -> None:
    block = block_of([bytes(1000)])
    with StoreClient(here.endpoint) as client:
        most = 0
        with client.put_stream(max_in_flight_bytes=3 * len(block)) as stream:
            for _ in range(100):
                stream.send(block)
                most = max(most, stream._in_flight)
        assert 0 < most <= 3 * len(block)
        # One block may always be on its way, whatever its size.
        with client.put_stream(max_in_flight_bytes=1) as stream:
            stream.send(block)
            stream.send(block)
    assert len(bodies(here)) == 102


def test_acknowledgements_come_in_order(here: Served) -> None:
    numbers: list[int] = []
    with (
        StoreClient(here.endpoint) as client,
        client.put_stream(on_ack=lambda ack: numbers.append(ack.number)) as stream,
    ):
        for _ in range(50):
            stream.send(block_of([b"a"]))
    assert numbers == list(range(50))


def test_no_thread_is_left(here: Served) -> None:
    threads = NewThreads()
    with StoreClient(here.endpoint) as client:
        for _ in range(3):
            with client.put_stream() as stream:
                stream.send(block_of([b"a"]))
            client.put_stream().close()
            with client.stage_stream() as stage:
                stage.send(block_of([b"a"]))
            assert not threads.named(*STREAMS_THREADS)
    eventually(lambda: here.server.calls_under_way == 0)


class Silent:
    """Both ends of a stream whose store has said all and stands still: closing it waits for that.

    Attributes:
        cancelled: set when the stream is given up.
    """

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def close(self) -> None:
        assert self.cancelled.wait(PATIENCE)
        raise flight.FlightCancelledError("given up")

    def cancel(self) -> None:
        self.cancelled.set()


def test_a_store_that_stands_still_behind_its_last_words_is_not_waited_for() -> None:
    """The process was stopped, and its client waited until it was resumed."""
    stream = Silent()
    lane = _Lane(stream, stream)
    lane.has_ended = True
    lane.close(0.05)
    assert stream.cancelled.is_set()


def test_a_program_that_leaves_a_stream_open_ends_it(here: Served) -> None:
    """A thread within Flight when the interpreter ends can abort the process."""
    program = (
        "import atexit, sys, threading\n"
        "atexit.register(lambda: print(*[t.name for t in threading.enumerate()]))\n"
        "from rmqstore_spark.client import StoreClient\n"
        "stream = StoreClient(sys.argv[1]).put_stream()\n"
    )
    command = [sys.executable, "-c", program, here.endpoint]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("MainThread\n", "")


# ---- stages -------------------------------------------------------------------------------------


def test_stages_are_committed_once_and_in_order(here: Served) -> None:
    with StoreClient(here.endpoint) as client:
        blocks = [block_of([b"%d.%d" % (n, i) for i in range(3)]) for n in range(4)]
        infos = []
        for pair in (blocks[2:], blocks[:2]):  # the second partition is ready first
            with client.stage_stream() as stream:
                for block in pair:
                    stream.send(block)
                info = stream.finish()
            data = b"".join(block.tobytes() for block in pair)
            assert (info.rows, info.bytes) == (6, len(data))
            assert info.checksum == zlib.crc32(data)
            infos.append(info)
        assert bodies(here) == []
        request = CommitRequest(WriterId.of_stream("query", 7), (infos[1], infos[0]))
        first, second = client.commit(request), client.commit(request)
    assert (first.status, first.rows) == ("COMMITTED", 12)
    assert (second.status, second.rows) == ("ALREADY_COMMITTED", 12)
    assert first.physical_offset == second.physical_offset
    assert bodies(here)[:12] == [b"%d.%d" % (n, i) for n in range(4) for i in range(3)]


def test_a_stage_that_is_not_finished_is_gone(here: Served) -> None:
    with StoreClient(here.endpoint) as client:
        with client.stage_stream("0" * 32) as stream:
            stream.send(block_of([b"a"]))
            stream.drain()
            assert here.store.stats()["stages"] == 1
        eventually(lambda: here.store.stats()["stages"] == 0)
        # The id was not used up: the attempt can begin again.
        with client.stage_stream("0" * 32) as stream:
            stream.send(block_of([b"a"]))
            assert stream.finish().rows == 1


def test_aborted_stages_cannot_be_committed(here: Served) -> None:
    with StoreClient(here.endpoint) as client:
        with client.stage_stream() as stream:
            stream.send(block_of([b"a"]))
            info = stream.finish()
        client.abort([info.stage_id, "f" * 32])
        with pytest.raises(RefusedError, match=info.stage_id):
            client.commit(CommitRequest(WriterId.of_one_write(), (info,)))
        with pytest.raises(RefusedError), client.stage_stream(info.stage_id) as late:
            late.finish()


def test_a_bad_record_fails_the_stage(here: Served) -> None:
    bad = block_of([b"a"])
    bad[8] ^= 1
    with StoreClient(here.endpoint) as client, client.stage_stream() as stream:
        stream.send(block_of([b"a"]))
        stream.send(bad)
        with pytest.raises(RefusedError, match="bodyCRC"):
            stream.finish()
    eventually(lambda: here.store.stats()["stages"] == 0)


def test_a_stage_without_records(here: Served) -> None:
    with StoreClient(here.endpoint) as client, client.stage_stream() as stream:
        assert stream.finish().rows == 0


def test_the_process_goes_away_in_the_middle(here: Served) -> None:
    with StoreClient(here.endpoint, retries=0) as client:
        stream = client.stage_stream()
        stream.send(block_of([b"a"]))
        stream.drain()
        here.server.close()
        with pytest.raises(ServiceError):
            stream.finish()
        stream.close()
        with pytest.raises(ServiceError, match="rmqstore serve"):
            client.open()
