"""Streams of puts: stored and answered while more of them arrive, within a budget of bytes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rmqstore_spark.client import StoreClient, contact
from rmqstore_spark.reader import Store
from rmqstore_spark.wire.protocol import Acknowledgement, Code
from tests.support.processes.plainclient import PlainClient, request
from tests.support.processes.serving import Served, block_of, eventually, served

BODIES = [b"%d" % number for number in range(40)]


class Disk:
    """`os.fdatasync` of the CommitLog, counted, and held while the test wants it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self._proceed = threading.Event()
        self._proceed.set()
        self._real = os.fdatasync
        monkeypatch.setattr(os, "fdatasync", self)

    def __call__(self, descriptor: int) -> None:
        if "/commitlog/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            self.calls += 1
            assert self._proceed.wait(30)
        self._real(descriptor)

    @contextmanager
    def held(self) -> Iterator[None]:
        self._proceed.clear()
        try:
            yield
        finally:
            self._proceed.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def here(tmp_path: Path, disk: Disk) -> Iterator[Served]:
    settings = {"flush_disk_type": "SYNC_FLUSH", "os_page_cache_busy_time_out_mills": 20}
    with served(tmp_path / "store", mapped_file_size_commit_log=64 << 20, **settings) as found:
        found.store.create_topic("orders")
        yield found


def large(number: int) -> bytes:
    """A body that is too large to be received without room for it."""
    return b"%d" % number + bytes(100_000)


def bodies(here: Served) -> list[bytes]:
    here.store.flush()
    with Store.open(here.store.path) as store:
        return [b for batch in store.scan() for b in batch.column("body").to_pylist()]


def test_what_comes_during_a_flush_shares_the_next_one(here: Served, disk: Disk) -> None:
    places: list[int] = []
    # One message a block, several, and one that is bad: the others must not suffer for it.
    blocks = [block_of([body]) for body in BODIES[:30]]
    blocks += [block_of(BODIES[30:35]), block_of([b"bad"]), block_of(BODIES[35:])]
    blocks[31][8] ^= 1  # bodyCRC
    with PlainClient(here.endpoint) as client:
        client.begin(op="put", results=True)
        before = disk.calls
        with disk.held():
            for number, block in enumerate(blocks):
                client.send(request(Code.BLOCK, block.tobytes(), number))
            eventually(lambda: disk.calls > before)
        acks = [Acknowledgement.from_bytes(client.answer().body) for _ in blocks]
    statuses = [ack.status for ack in acks]
    for ack in acks:
        places.extend(() if ack.physical_offset is None else ack.physical_offset.tolist())
    assert statuses == ["PUT_OK"] * 31 + ["MESSAGE_ILLEGAL", "PUT_OK"]
    assert disk.calls - before <= 3
    assert places == sorted(places)
    assert len(places) == len(BODIES)
    assert bodies(here) == BODIES


def test_what_is_refused_is_sent_again_in_order(
    here: Served, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contact, "_FIRST_WAIT", 0.01)  # else it pauses for minutes
    monkeypatch.setattr(contact, "_LONGEST_WAIT", 0.01)
    holding, enough = threading.Event(), threading.Event()

    def hold() -> None:
        with here.store._appender.appending():
            holding.set()
            enough.wait(60)

    with StoreClient(here.endpoint, retries=1000) as client, client.put_stream() as stream:
        stream.put(block_of(BODIES[:1]))
        holder = threading.Thread(target=hold)
        holder.start()
        assert holding.wait(10)

        def send() -> None:
            for body in BODIES[1:20]:
                stream.send(block_of([body]))
            stream.drain()

        sender = threading.Thread(target=send)
        sender.start()
        try:
            eventually(lambda: stream._attempts_left < stream._attempts)
        finally:
            enough.set()
            holder.join()
            sender.join(30)
        for body in BODIES[20:]:
            stream.send(block_of([body]))
        assert stream.finish() == len(BODIES)
    assert bodies(here) == BODIES


def test_what_was_received_and_not_answered_is_bounded(here: Served, disk: Disk) -> None:
    block, count = block_of([bytes(1 << 20)]), 24
    budget = here.server.room.large
    with StoreClient(here.endpoint) as client:
        stream = client.put_stream(max_in_flight_bytes=64 << 20)

        def send() -> None:
            for _ in range(count):
                stream.send(block)

        sender = threading.Thread(target=send)
        with disk.held():
            sender.start()
            eventually(lambda: budget.used)
            with pytest.raises(AssertionError):
                eventually(lambda: budget.used > 10 << 20, seconds=0.5)
        sender.join(30)
        assert stream.finish() == count
        eventually(lambda: not budget.used)


def test_a_stream_waits_for_room_that_its_own_blocks_take(
    here: Served, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    block, count = block_of([bytes(300_000)]), 12
    budget = here.server.room.small
    monkeypatch.setattr(budget, "_most", 1 << 20)
    monkeypatch.setattr("rmqstore_spark.server.puts._ROOM_SECONDS", 0.1)
    with StoreClient(here.endpoint, retries=0) as client, client.put_stream() as stream:

        def send() -> None:
            for _ in range(count):
                stream.send(block)

        sender = threading.Thread(target=send)
        with disk.held():
            sender.start()
            eventually(lambda: budget.used)
            with pytest.raises(AssertionError):  # longer than a block waits for the room of others
                eventually(lambda: stream._failure, seconds=0.5)
        sender.join(30)
        assert stream.finish() == count


def test_a_block_for_which_there_is_no_room_is_sent_again(
    here: Served, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmqstore_spark.server.puts._ROOM_SECONDS", 0.1)
    budget = here.server.room.small
    sent = [large(number) for number in range(20)]
    with StoreClient(here.endpoint, retries=30) as client, client.put_stream() as stream:
        assert stream.put(block_of(sent[:1])).is_ok
        budget.take(budget._most, 10)

        def send() -> None:
            for body in sent[1:]:
                stream.send(block_of([body]))
            stream.drain()

        sender = threading.Thread(target=send)
        sender.start()
        eventually(lambda: stream._attempts_left < stream._attempts)
        budget.give_back(budget._most)
        sender.join(30)
        assert stream.finish() == len(sent)
    assert bodies(here) == sent
    assert budget.used == 0


def test_without_room_small_blocks_are_stored_and_large_ones_wait(here: Served, disk: Disk) -> None:
    budget = here.server.room.small
    budget.take(budget._most, 10)
    with StoreClient(here.endpoint) as client:
        late = client.put_stream()
        late.send(block_of([large(1)]))
        with client.put_stream() as stream:
            assert stream.put(block_of([b"small"])).is_ok
        assert late.rows == 0
        budget.give_back(budget._most)
        assert late.finish() == 1
        late.close()
    assert bodies(here) == [b"small", large(1)]


def test_a_client_that_goes_away_leaves_nothing(here: Served, disk: Disk) -> None:
    with StoreClient(here.endpoint) as client, disk.held():
        stream = client.put_stream()
        sent = [large(number) for number in range(20)]
        for body in sent:
            stream.send(block_of([body]))
        eventually(lambda: here.server.room.used)
        stream.close()
    eventually(lambda: here.server.calls_under_way == 0)
    assert here.server.room.used == 0
    found = bodies(here)
    assert found == sent[: len(found)]


def test_what_waits_for_the_disk_is_work_that_a_drain_waits_for(here: Served, disk: Disk) -> None:
    with StoreClient(here.endpoint) as client, client.put_stream() as stream:
        stream.put(block_of(BODIES[:1]))
        before = disk.calls
        with disk.held():
            stream.send(block_of(BODIES[1:2]))
            eventually(lambda: disk.calls > before)
            assert not here.server.drain(0.2)
        assert here.server.drain(30)
        stream.drain()
        assert stream.rows == 2
