"""Streams of blocks: windows, overload, acknowledgements, stages."""

from __future__ import annotations

import select
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rmqstore_spark.base.types import CommitRequest, WriterId
from rmqstore_spark.client import StoreClient, contact
from rmqstore_spark.errors import RefusedError, ServiceError
from rmqstore_spark.reader import Store
from rmqstore_spark.wire.protocol import Acknowledgement
from tests.support.processes.serving import Served, block_of, eventually, served


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
    monkeypatch.setattr(contact, "_FIRST_WAIT", 0.01)
    monkeypatch.setattr(contact, "_LONGEST_WAIT", 0.05)
    sent = [b"%d" % number for number in range(40)]
    with StoreClient(here.endpoint, retries=30) as client, client.put_stream() as stream:
        stream.put(block_of(sent[:1]))
        with overloaded(here):
            for body in sent[1:20]:
                stream.send(block_of([body]))
            eventually(lambda: here.store.stats()["putFailures"]["OS_PAGECACHE_BUSY"])
        for body in sent[20:]:
            stream.send(block_of([body]))
        assert stream.finish() == 40
    assert bodies(here) == sent


def test_a_client_that_still_writes_when_it_is_refused_learns_why(here: Served) -> None:
    block = block_of([b"a"])

    def put(client: StoreClient) -> None:
        with client.put_stream() as stream:
            stream.send(block)
            eventually(lambda: here.store.stats()["putFailures"]["OS_PAGECACHE_BUSY"])
            for _ in range(1000):
                stream.send(block)

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


def test_numbers_of_blocks_begin_again(here: Served) -> None:
    numbers: list[int] = []
    with (
        StoreClient(here.endpoint) as client,
        client.put_stream(on_ack=lambda ack: numbers.append(ack.number)) as stream,
    ):
        stream._count = (1 << 31) - 1
        assert [stream.send(block_of([b"a"])) for _ in range(2)] == [(1 << 31) - 1, 1 << 31]
        assert stream.finish() == 2
    assert numbers == [(1 << 31) - 1, 0]


def test_a_callback_that_fails_ends_the_stream(here: Served) -> None:
    """It can be called while a block is sent in part: no other one may follow that."""

    def fail(_: Acknowledgement) -> None:
        raise KeyError("of the caller")

    with StoreClient(here.endpoint) as client:
        stream = client.put_stream(on_ack=fail)
        stream.send(block_of([b"a"]))
        with pytest.raises(KeyError, match="of the caller"):
            stream.drain()
        with pytest.raises(ServiceError, match="is closed"):
            stream.send(block_of([b"b"]))
    eventually(lambda: here.server.calls_under_way == 0)
    assert bodies(here) == [b"a"]


def test_a_stream_has_no_thread_and_a_program_may_leave_it_open(here: Served) -> None:
    program = (
        "import atexit, sys, threading\n"
        "atexit.register(lambda: print(*[t.name for t in threading.enumerate()]))\n"
        "from rmqstore_spark.client import StoreClient\n"
        "stream = StoreClient(sys.argv[1]).put_stream()\n"
        "stream.send(bytes.fromhex(sys.argv[2]))\n"
        "stream.drain()\n"
    )
    block = block_of([b"a"]).tobytes().hex()
    command = [sys.executable, "-c", program, here.endpoint, block]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("MainThread\n", "")
    eventually(lambda: here.server.calls_under_way == 0)
    assert bodies(here) == [b"a"]


def test_a_stream_waits_anew_after_it_was_long_without_a_process(here: Served) -> None:
    """The time that an acknowledgement may take begins when there is a connection again."""
    with StoreClient(here.endpoint, retries=3, timeout_s=5) as client:
        stream = client.put_stream(resends=True)
        stream.put(block_of([b"a"]))
        stream.send(block_of([b"b"]))
        stream._drop_link()
        stream._since -= 60
        assert stream.finish() == 2
    assert set(bodies(here)) == {b"a", b"b"}


def test_what_came_while_the_caller_was_busy_is_taken(here: Served) -> None:
    with StoreClient(here.endpoint, retries=0, timeout_s=5) as client:
        stream = client.put_stream()
        stream.send(block_of([b"a"]))
        assert stream._link is not None
        socket = stream._link._transport._socket
        eventually(lambda: select.select([socket], [], [], 0)[0])  # the acknowledgement is here
        stream._since -= 60
        assert stream.finish() == 1


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

        def stage() -> None:
            stream.send(block_of([b"a"]))
            stream.send(bad)  # which may have its answer at once
            stream.finish()

        with pytest.raises(RefusedError, match="bodyCRC"):
            stage()
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
