"""How requests arrive: in any pieces, checked by their headers, within the room for bodies."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqstore_spark.errors import FrameError
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.server.budget import Budget, OverBudgetError, Room
from rmqstore_spark.server.connections.receiver import EndedError, ReceivedRequest, Receiver
from rmqstore_spark.wire.protocol import Code
from rmqstore_spark.wire.transport import PlainTransport
from tests.support.processes.plainclient import head_of, request
from tests.support.waiting import eventually

MIB = 1 << 20
STAGED, SMALL = 32 << 10, 64 << 10


class Pair(NamedTuple):
    """A receiver, and the client that it receives from.

    Attributes:
        admitted: the number and the size of each request whose header was seen.
    """

    client: socket.socket
    receiver: Receiver
    room: Room
    admitted: list[tuple[int, int]]


@contextmanager
def pair(most: int = 16 * MIB, small: int = 4 * MIB) -> Iterator[Pair]:
    ours, client = socket.socketpair()
    room, admitted = Room(most, small), list[tuple[int, int]]()

    def admit(head: Command, size: int) -> None:
        admitted.append((head.opaque, size))

    with ours, client:
        client.settimeout(20)
        receiver = Receiver(PlainTransport(ours), lambda _, size: room.of(size), admit)
        yield Pair(client, receiver, room, admitted)
        receiver.close()
    assert room.used == 0


@contextmanager
def sending(client: socket.socket, *pieces: bytes) -> Iterator[None]:
    """Send pieces, each by a call of its own, and then the end."""

    def send() -> None:
        with suppress(OSError):
            for piece in pieces:
                client.sendall(piece)
            client.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        client.close()
        thread.join()


@contextmanager
def waiting_for(budget: Budget, count: int) -> Iterator[None]:
    """Somebody else waits for room."""

    def wait() -> None:
        budget.take(count, 60)
        budget.give_back(count)

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        eventually(lambda: budget.is_contended)
        yield
    finally:
        thread.join()


def taken(found: ReceivedRequest | None) -> tuple[int, bytes]:
    """The number and the body of a request, which is released."""
    assert found is not None
    told = found.head.opaque, found.data.tobytes()
    found.release()
    return told


BODIES = st.one_of(
    st.binary(max_size=300),
    st.sampled_from([STAGED, STAGED + 1, SMALL, SMALL + 1, 150_000]).map(lambda size: b"b" * size),
)
PIECES = st.lists(st.one_of(st.integers(1, 40), st.integers(1000, 50_000)), max_size=60)


def cut(data: bytes, lengths: list[int]) -> Iterator[bytes]:
    for length in lengths:
        yield data[:length]
        data = data[length:]
    yield data


@pytest.mark.threat("Resource limits")
@settings(max_examples=80, deadline=None)
@given(st.lists(BODIES, max_size=6), PIECES, st.booleans())
def test_requests_arrive_in_any_pieces(bodies: list[bytes], lengths: list[int], now: bool) -> None:
    data = b"".join(request(Code.BLOCK, body, number) for number, body in enumerate(bodies))
    with pair() as found:
        if now:
            told = []
            for piece in cut(data, lengths):
                for at in range(0, len(piece), 50_000):  # as much as the socket takes
                    found.client.sendall(piece[at : at + 50_000])
                    while (one := found.receiver.ready()) is not None:
                        told.append(taken(one))
        else:
            with sending(found.client, *cut(data, lengths)):
                told = [taken(found.receiver.read(20, 1)) for _ in bodies]
                assert found.receiver.read(20, 1) is None
        assert told == list(enumerate(bodies))
        assert found.admitted == [(number, len(body)) for number, body in enumerate(bodies)]


@pytest.mark.threat("Resource limits")
@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.binary(max_size=200).map(lambda body: request(Code.BLOCK, body)),
            st.tuples(st.integers(-9, 1 << 20), st.integers(0, (1 << 32) - 1)).map(
                lambda pair: struct.pack(">iI", *pair)
            ),
        ),
        max_size=4,
    )
)
def test_any_bytes_are_requests_or_refused(pieces: list[bytes]) -> None:
    with pair() as found, sending(found.client, *pieces), suppress(FrameError, EndedError):
        while (one := found.receiver.read(20, 1)) is not None:
            one.release()


@pytest.mark.threat("Resource limits")
@pytest.mark.parametrize(
    ("length", "header"),
    [(1 << 20, (16 << 10) + 1), (1 << 20, 0xFFFFFF), (3, 0), (-1, 0), ((1 << 31) - 1, 5), (10, 7)],
)
def test_a_frame_is_refused_by_its_first_bytes(length: int, header: int) -> None:
    with pair() as found:
        found.client.sendall(struct.pack(">iI", length, header))
        with pytest.raises(FrameError):
            found.receiver.read(20, 1)
        assert not found.admitted


def test_a_header_as_long_as_may_be_is_read() -> None:
    longest = (16 << 10) - len(head_of(Code.BLOCK, 0, 7, remark="")) + 8
    data = head_of(Code.BLOCK, 3, 7, remark="r" * longest) + b"abc"
    pieces = [data[at : at + 999] for at in range(0, len(data), 999)]
    with pair() as found, sending(found.client, *pieces):
        assert taken(found.receiver.read(20, 1)) == (7, b"abc")


@pytest.mark.parametrize("sent", [0, 7, 50, 10_000])
def test_a_client_that_goes_within_a_request_is_told_apart(sent: int) -> None:
    with pair() as found, sending(found.client, request(Code.BLOCK, bytes(100_000))[:sent]):
        if sent:
            with pytest.raises(EndedError):
                found.receiver.read(20, 1)
        else:
            assert found.receiver.read(20, 1) is None


@pytest.mark.threat("Resource limits")
def test_a_body_waits_for_room_and_stays_with_the_client() -> None:
    size = 2 * MIB
    with pair() as found:
        found.room.large.take(12 * MIB, 1)
        found.client.setblocking(False)
        data = request(Code.BLOCK, bytes(size), 3)
        sent = found.client.send(data)
        assert found.receiver.ready() is None
        assert found.admitted == [(3, size)]
        with suppress(BlockingIOError):
            while sent < len(data):
                sent += found.client.send(data[sent:])
        assert sent < len(data) // 2
        with pytest.raises(OverBudgetError):
            found.receiver.read(20, 0.01)
        found.room.large.give_back(12 * MIB)
        found.client.settimeout(20)
        with sending(found.client, data[sent:]):
            assert taken(found.receiver.read(20, 1)) == (3, bytes(size))


def test_small_bodies_need_no_room_as_long_as_few_are_held() -> None:
    body = bytes(60_000)
    with pair() as found:
        found.room.small.take(4 * MIB, 1)
        found.client.sendall(request(Code.BLOCK, body))
        first = found.receiver.ready()
        found.client.sendall(request(Code.BLOCK, body))
        second = found.receiver.ready()
        found.client.sendall(request(Code.BLOCK, body))
        assert first is not None
        assert second is not None
        assert found.receiver.ready() is None
        first.release()
        assert taken(found.receiver.ready()) == (0, body)
        second.release()
        found.room.small.give_back(4 * MIB)


def test_a_request_that_is_released_twice_gives_back_its_room_once() -> None:
    with pair() as found, sending(found.client, request(Code.BLOCK, bytes(MIB))):
        one = found.receiver.read(20, 1)
        assert one is not None
        assert found.room.used == MIB
        one.release()
        one.release()
        assert found.room.used == 0
        assert not len(one.data)


@pytest.mark.threat("Resource limits")
@pytest.mark.parametrize("missing", [2 * MIB, MIB, STAGED, 1])
def test_a_slow_filler_loses_its_room_to_who_waits(
    missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little is missing: it is the room of the whole body that others wait for."""
    monkeypatch.setattr("rmqstore_spark.server.connections.receiver._PACE_SECONDS", 0.01)
    with pair(8 * MIB, 4 * MIB) as found:
        data = request(Code.BLOCK, bytes(2 * MIB))

        def send() -> None:
            found.client.sendall(data[: len(data) - missing])

        sender = threading.Thread(target=send)
        sender.start()
        with pytest.raises(OverBudgetError):
            received_beside_others(found)
        sender.join()


def received_beside_others(found: Pair) -> None:
    """Read a request while somebody waits for room."""
    ended = threading.Event()

    def wait() -> None:
        eventually(lambda: found.room.large.used)
        found.room.large.take(3 * MIB, 60)
        found.room.large.give_back(3 * MIB)
        ended.set()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        found.receiver.read(60, 1)
    finally:
        found.receiver.close()
        thread.join()
    assert ended.is_set()


def test_a_slow_filler_keeps_room_that_nobody_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqstore_spark.server.connections.receiver._PACE_SECONDS", 0.01)
    monkeypatch.setattr("rmqstore_spark.server.connections.receiver._LOOK_SECONDS", 0.01)
    with pair() as found:
        data = request(Code.BLOCK, bytes(2 * MIB))
        found.client.sendall(data[:1000])
        assert found.receiver.ready() is None
        looked = threading.Event()
        real = found.receiver._transport.recv_into

        def recv_into(target: memoryview, seconds: float | None, *, whole: bool = False) -> int:
            try:
                return real(target, seconds, whole=whole)
            except TimeoutError:
                looked.set()
                raise

        monkeypatch.setattr(found.receiver._transport, "recv_into", recv_into)

        def send() -> None:
            assert looked.wait(20)
            found.client.sendall(data[1000:])

        sender = threading.Thread(target=send)
        sender.start()
        assert taken(found.receiver.read(60, 1)) == (0, bytes(2 * MIB))
        sender.join()


class Clock:
    """The seconds that pass for a receiver; `each` of them whenever it looks."""

    def __init__(self, each: float = 0.0) -> None:
        self.now = 0.0
        self.each = each

    def monotonic(self) -> float:
        self.now += self.each
        return self.now


def test_a_client_is_not_slow_while_the_handler_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("rmqstore_spark.server.connections.receiver.time", clock)
    with pair(8 * MIB, 4 * MIB) as found:
        data = request(Code.BLOCK, bytes(2 * MIB))
        found.client.sendall(data[:50_000])
        assert found.receiver.ready() is None
        clock.now += 100  # the handler stores what came before
        with waiting_for(found.room.large, 3 * MIB):
            # In pieces, as TLS gives them: it is looked at behind each.
            real = found.receiver._transport.recv_into

            def piece(target: memoryview, seconds: float | None, *, whole: bool = False) -> int:
                return real(target[: 16 << 10], seconds)

            monkeypatch.setattr(found.receiver._transport, "recv_into", piece)
            with sending(found.client, data[50_000:]):
                assert taken(found.receiver.read(60, 1)) == (0, bytes(2 * MIB))


@pytest.mark.threat("Resource limits")
@pytest.mark.parametrize("size", [0, 200, 50_000, 2 * MIB])
def test_a_byte_now_and_then_does_not_make_a_request_last(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the header, of a small body, of one that takes room."""
    with pair() as found:
        found.client.sendall(head_of(Code.BLOCK, size) if size else struct.pack(">iI", 500, 400))

        class Trickle(Clock):
            def monotonic(self) -> float:
                found.client.send(b" ")
                return super().monotonic()

        monkeypatch.setattr("rmqstore_spark.server.connections.receiver.time", Trickle(1.0))
        if size == 50_000:  # which is received as a whole: for as long as a client may be silent
            monkeypatch.setattr("rmqstore_spark.server.connections.receiver._STAGED", 50_000)
        with pytest.raises(TimeoutError):
            found.receiver.read(20, 1)


def test_what_is_discarded_ends_with_the_client_or_with_the_time() -> None:
    with pair() as found, sending(found.client, bytes(4 * MIB)):
        found.receiver.discard(20)
    with pair() as found:
        found.client.sendall(b"something")
        found.receiver.discard(0.01)
        found.receiver.discard(1e-9)  # less than the system's timers can tell
