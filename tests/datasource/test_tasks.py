"""What a task of Spark does before it reads or writes."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from rmqstore_spark.datasource.tasks import acknowledge_at_once

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="others have no TCP_QUICKACK")

ROUNDS = 50
_UNACKNOWLEDGED = slice(24, 28)  # of struct tcp_info: tcpi_unacked


@pytest.fixture
def talk() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection as that of the JVM to a worker: each has answered the other for a while."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        closing(socket.create_connection(server.getsockname())) as jvm,
        closing(server.accept()[0]) as worker,
    ):
        for _ in range(ROUNDS):
            jvm.sendall(b"ask")
            worker.sendall(worker.recv(9))
            jvm.recv(9)
        yield jvm, worker


def unacknowledged(jvm: socket.socket) -> int:
    """How many packets the other end has not acknowledged."""
    told = jvm.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return int.from_bytes(told[_UNACKNOWLEDGED], sys.byteorder)


def test_what_came_is_acknowledged_at_once(talk: tuple[socket.socket, socket.socket]) -> None:
    jvm, worker = talk
    seen = []
    for _ in range(ROUNDS):
        jvm.sendall(b"task")
        worker.recv(9)
        seen.append(unacknowledged(jvm))
        acknowledge_at_once()
        assert unacknowledged(jvm) == 0
        worker.sendall(b"done")
        jvm.recv(9)
    assert 1 in seen  # otherwise this shows nothing


def test_the_sockets_stay_open(talk: tuple[socket.socket, socket.socket]) -> None:
    jvm, worker = talk
    here, there = socket.socketpair()
    with here, there:
        acknowledge_at_once()
        here.sendall(b"1")
        assert there.recv(9) == b"1"
    jvm.sendall(b"2")
    assert worker.recv(9) == b"2"


def test_a_default_timeout_does_not_reach_the_connection(
    talk: tuple[socket.socket, socket.socket],
) -> None:
    """What a user's function has set stays set in a worker that is used again."""
    _, worker = talk
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(5.0)
    try:
        acknowledge_at_once()
    finally:
        socket.setdefaulttimeout(before)
    assert os.get_blocking(worker.fileno())
