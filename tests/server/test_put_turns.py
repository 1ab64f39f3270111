"""Streams whose single messages are stored in turns, and what takes them out of these."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from rmqstore_spark.client import StoreClient
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.reader import Store
from rmqstore_spark.server import put_turns
from rmqstore_spark.verify import verify
from rmqstore_spark.wire.transport import PlainTransport
from tests.support.processes.serving import block_of, eventually, served

pytestmark = pytest.mark.skipif(not put_turns.CAN_WATCH, reason="the system has no epoll")


def has_thread(name: str = "rmqstore-puts") -> bool:
    return any(thread.name == name for thread in threading.enumerate())


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_what_is_not_usual_keeps_its_place_in_the_stream(tmp_path: Path, flush: str) -> None:
    expected = []
    with served(tmp_path / "store", flush_disk_type=flush) as here:
        with StoreClient(here.endpoint) as client, client.put_stream(results=True) as stream:
            for turn in range(5):
                blocks = [
                    [b"single %d" % turn],
                    [b"first %d" % turn, b"second %d" % turn],
                    [b"large %d" % turn + b"x" * 20_000],
                ]
                for bodies in blocks:
                    assert stream.put(block_of(bodies)).is_ok
                    expected += bodies
                many = [b"sent %d.%d" % (turn, number) for number in range(40)]
                for body in many:  # several are on their way
                    stream.send(block_of([body]))
                stream.drain()
                expected += many
            assert stream.put(block_of([b"last"])).is_ok
            expected.append(b"last")
            eventually(has_thread)
        assert stream.rows == len(expected)
        here.store.flush()
    with Store.open(tmp_path / "store") as store:
        rows = [row for batch in store.scan() for row in batch.to_pylist()]
        assert verify(store).ok
    assert [row["body"] for row in rows] == expected


def test_its_thread_ends_when_no_stream_waits(tmp_path: Path) -> None:
    with served(tmp_path / "store") as here:
        for _ in range(2):
            with StoreClient(here.endpoint) as client, client.put_stream() as stream:
                assert stream.put(block_of([b"a"])).is_ok
                eventually(has_thread)
            eventually(lambda: not has_thread())


def test_a_stream_that_loses_its_permission_is_refused(tmp_path: Path) -> None:
    with served(tmp_path / "store") as here:
        with StoreClient(here.endpoint, retries=0) as client:
            stream = client.put_stream()
            assert stream.put(block_of([b"a"])).is_ok
            here.store.reconfigure(replace(here.store.config, broker_permission=4))
            with pytest.raises(RefusedError, match="cannot be written now"):
                stream.put(block_of([b"b"]))
            stream.close()
        assert here.store.put_messages == 1


def test_what_is_not_taken_at_once_is_left() -> None:
    one, other = socket.socketpair()
    with one, other:
        transport, sent = PlainTransport(one), 0
        while count := transport.send_now(b"x" * 65_536):
            sent += count
        other.settimeout(10)
        assert len(other.recv(sent, socket.MSG_WAITALL)) == sent
        assert transport.send_now(b"y") == 1
