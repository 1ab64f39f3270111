"""What a peer may do with HTTP/2: bytes of our own on a socket, against a real listener."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import hpack
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmqstore_spark.client import StoreClient
from rmqstore_spark.server.flight.frames import (
    CLIENT_PREFACE,
    DEFAULT_WINDOW,
    ErrorCode,
    Flag,
    Frame,
    Setting,
    frame,
    header_block,
    read_headers,
)
from rmqstore_spark.server.flight.inbox import INITIAL_WINDOW
from rmqstore_spark.server.flight.messages import flight_data_head
from rmqstore_spark.wire.protocol import BLOCK_SCHEMA, block_batch, number_bytes
from tests.support.certificates import make_certificates
from tests.support.processes.serving import Served, block_of, eventually, served

TOKEN = "a-token-that-nobody-guesses"
PATH = "/arrow.flight.protocol.FlightService/"


class Received(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


class Peer:
    """A client of raw HTTP/2."""

    def __init__(self, here: Served) -> None:
        endpoint = here.server.endpoints[0]
        self.socket = socket.create_connection((endpoint.host, endpoint.port), 20)
        self._rest = b""

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def greet(self) -> Peer:
        self.socket.sendall(CLIENT_PREFACE + frame(Frame.SETTINGS, 0, 0))
        return self

    def call(self, stream: int, method: str, *headers: tuple[str, str]) -> None:
        block = header_block(
            [(":method", "POST"), (":path", PATH + method), *headers], is_response=False
        )
        self.socket.sendall(frame(Frame.HEADERS, Flag.END_HEADERS, stream, block))

    def send(self, *frames: bytes) -> None:
        """Send frames, as far as the server still takes them."""
        with suppress(ConnectionError):
            self.socket.sendall(b"".join(frames))

    def received(self) -> Iterator[Received]:
        """Frames until the connection ends."""
        while True:
            while len(self._rest) < 9 or len(self._rest) < 9 + self._size():
                try:
                    more = self.socket.recv(1 << 16)
                except ConnectionError:
                    more = b""
                if not more:
                    return
                self._rest += more
            size, head = self._size(), self._rest[:9]
            payload, self._rest = self._rest[9 : 9 + size], self._rest[9 + size :]
            (stream,) = struct.unpack(">I", head[5:])
            yield Received(head[3], head[4], stream, payload)

    def until(self, kind: Frame) -> Received:
        for one in self.received():
            if one.kind == kind and not (kind == Frame.SETTINGS and one.flags & Flag.ACK):
                return one
        raise AssertionError(f"the connection ended without {kind.name}")

    def goodbye(self) -> int:
        """The code with which the server ends the connection."""
        codes = [
            struct.unpack(">II", one.payload)[1]
            for one in self.received()
            if one.kind == Frame.GOAWAY
        ]
        assert len(codes) == 1
        return int(codes[0])

    def _size(self) -> int:
        return int.from_bytes(self._rest[:3], "big")


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "store") as found:
        yield found
        with StoreClient(found.endpoint, retries=0) as client, client.put_stream() as stream:
            assert stream.put(block_of([b"still alive"])).is_ok


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Served]:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with served(tmp_path / "store", token_path=str(token)) as found:
        yield found


def data(stream: int, payload: bytes, flags: int = 0) -> bytes:
    return frame(Frame.DATA, flags, stream, payload)


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (frame(Frame.DATA, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR),
        (frame(Frame.CONTINUATION, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR),
        (frame(Frame.PUSH_PROMISE, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR),
        (frame(Frame.HEADERS, Flag.END_HEADERS, 1, b"\xff" * 40), ErrorCode.COMPRESSION_ERROR),
        (frame(Frame.HEADERS, Flag.END_HEADERS, 2, b"\x83"), ErrorCode.PROTOCOL_ERROR),
        (frame(Frame.HEADERS, Flag.PADDED, 1, b"\xff"), ErrorCode.PROTOCOL_ERROR),
        (frame(Frame.HEADERS, 0, 1, b"\x83") + frame(Frame.PING, 0, 0, bytes(8)),
         ErrorCode.PROTOCOL_ERROR),
        (frame(Frame.HEADERS, 0, 1, bytes(9000)) + frame(Frame.CONTINUATION, 0, 1, bytes(9000)),
         ErrorCode.ENHANCE_YOUR_CALM),
        (frame(Frame.SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(Frame.SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 31)), ErrorCode.FLOW_CONTROL_ERROR),
        (frame(Frame.SETTINGS, 0, 0, struct.pack(">HI", 5, 1)), ErrorCode.PROTOCOL_ERROR),
        (frame(Frame.WINDOW_UPDATE, 0, 0, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(Frame.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), ErrorCode.FLOW_CONTROL_ERROR),
        (frame(Frame.PING, 0, 0, bytes(20_000)), ErrorCode.FRAME_SIZE_ERROR),
        (b"\xff\xff\xff\x00\x00\x00\x00\x00\x01", ErrorCode.FRAME_SIZE_ERROR),
    ],
)  # fmt: skip
def test_a_peer_that_breaks_the_protocol_is_told_and_left(
    here: Served, frames: bytes, code: ErrorCode
) -> None:
    with Peer(here).greet() as peer:
        peer.send(frames)
        assert peer.goodbye() == code


def test_what_is_not_http2_is_left(here: Served) -> None:
    with Peer(here) as peer:
        peer.send(b"GET / HTTP/1.1\r\nHost: store\r\n\r\n")
        assert peer.goodbye() == ErrorCode.PROTOCOL_ERROR


@pytest.mark.threat("Resource limits")
def test_more_than_the_window_is_refused(here: Served) -> None:
    with Peer(here).greet() as peer:
        peer.call(1, "DoExchange")
        first = struct.pack(">BI", 0, 30 << 20)
        peer.send(data(1, first), *[data(1, bytes(16_000))] * (INITIAL_WINDOW // 16_000 + 1))
        # The message has been given room for by now, or has not: either way no more than that.
        peer.send(*[data(1, bytes(1 << 20))] * 31)
        assert peer.goodbye() == ErrorCode.FLOW_CONTROL_ERROR


@pytest.mark.threat("Resource limits")
def test_a_stranger_may_send_no_more_than_one_window(guarded: Served) -> None:
    with Peer(guarded).greet() as peer:
        peer.call(1, "DoExchange")
        trailers = peer.until(Frame.HEADERS)
        assert b"grpc-status" in trailers.payload
        peer.send(*[data(1, bytes(16_000))] * (DEFAULT_WINDOW // 16_000 + 1))
        assert peer.goodbye() == ErrorCode.FLOW_CONTROL_ERROR


@pytest.mark.threat("Resource limits")
def test_a_stranger_is_left_after_a_while(guarded: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqstore_spark.server.flight.listener._STRANGER_SECONDS", 1.0)
    with Peer(guarded).greet() as silent, Peer(guarded).greet() as wrong:
        wrong.call(1, "DoAction", ("authorization", "Bearer wrong"))
        assert list(silent.received())
        assert list(wrong.received())
    eventually(lambda: guarded.server.connections == 0)


def test_a_call_is_refused_by_its_headers_alone(guarded: Served) -> None:
    with Peer(guarded).greet() as peer:
        peer.call(1, "DoAction")
        headers = read_headers(hpack.Decoder(), peer.until(Frame.HEADERS).payload)
        assert headers["grpc-status"] == ["16"]
        assert guarded.server.stats()["callFailures"]["NO_PERMISSION"] == 1
        assert guarded.server.calls_under_way == 0


def test_a_message_that_is_too_large_is_refused_by_its_length(here: Served) -> None:
    with Peer(here).greet() as peer:
        peer.call(1, "DoAction")
        peer.send(data(1, struct.pack(">BI", 0, 1 << 31)))
        answer = peer.until(Frame.HEADERS).payload
        assert b"MESSAGE_ILLEGAL" in answer
        assert here.server.room.used == 0


def test_a_message_that_gzip_made_is_refused(here: Served) -> None:
    with Peer(here).greet() as peer:
        peer.call(1, "DoAction")
        peer.send(data(1, struct.pack(">BI", 1, 5) + b"bytes"))
        assert b"compressed" in peer.until(Frame.HEADERS).payload


def test_padding_and_small_pieces_are_taken(here: Served) -> None:
    message = b"\x0a\x05stats\x12\x02{}"
    whole = struct.pack(">BI", 0, len(message)) + message
    with Peer(here).greet() as peer:
        peer.call(1, "DoAction")
        for byte in whole:
            peer.send(data(1, b"\x03" + bytes([byte]) + bytes(3), Flag.PADDED))
        assert b"putMessages" in peer.until(Frame.DATA).payload


def test_a_call_that_is_given_up_leaves_nothing(here: Served) -> None:
    with Peer(here).greet() as peer:
        for stream in range(1, 41, 2):
            peer.call(stream, "DoExchange")
            peer.send(data(stream, struct.pack(">BI", 0, 4 << 20) + bytes(1000)))
        eventually(lambda: here.server.calls_under_way == 20)
        eventually(lambda: here.server.room.used > 0)
        for stream in range(1, 41, 2):
            peer.send(frame(Frame.RST_STREAM, 0, stream, struct.pack(">I", ErrorCode.CANCEL)))
        eventually(lambda: here.server.calls_under_way == 0)
        eventually(lambda: here.server.room.used == 0)


@pytest.mark.threat("Resource limits")
def test_a_sender_that_others_wait_for_loses_its_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmqstore_spark.server.flight.inbox._GRACE_SECONDS", 0.2)
    size = 30 << 20
    with (
        served(tmp_path / "store", stream_idle_timeout=3_600_000) as here,  # else they lose it too
        ExitStack() as opened,
    ):
        for _ in range(8):  # more than there is room for
            peer = opened.enter_context(Peer(here).greet())
            peer.call(1, "DoExchange")
            command = b"\x0a\x10\x08\x02\x12\x0c" + b'{"op":"put"}'
            peer.send(data(1, struct.pack(">BI", 0, len(command)) + command))
            peer.send(data(1, struct.pack(">BI", 0, size)))
        eventually(lambda: here.server.room.large.is_contended)
        with StoreClient(here.endpoint) as client, client.put_stream() as stream:
            block = block_of([bytes(1000)] * 3000)  # more than 1 MiB: it needs the same room
            assert stream.put(block).is_ok


def test_empty_messages_are_bounded(here: Served) -> None:
    """Each costs five bytes of the window, and much more memory."""
    with Peer(here).greet() as peer:
        peer.send(frame(Frame.SETTINGS, 0, 0, struct.pack(">HI", Setting.INITIAL_WINDOW_SIZE, 0)))
        peer.call(1, "DoAction")  # whose answer cannot be sent
        message = b"\x0a\x05stats\x12\x02{}"
        peer.send(data(1, struct.pack(">BI", 0, len(message)) + message))
        (call,) = eventually(here.server._calls.all)
        eventually(lambda: call.stream.blocked_since)
        peer.send(*[data(1, bytes(5 * 1000))] * 20, frame(Frame.PING, 0, 0, bytes(8)))
        peer.until(Frame.PING)
        assert len(call.stream._inbox) == 256


def test_what_is_refused_leaves_the_window_open(here: Served) -> None:
    """A client that keeps sending after a refusal must not block."""
    stage = json.dumps({"op": "stage", "stageId": "0" * 32}).encode()
    schema = pa.ipc.read_message(BLOCK_SCHEMA.serialize()).metadata.to_pybytes()
    batch = pa.ipc.read_message(block_batch(b"no record" * 5000).serialize())
    head = flight_data_head(batch.metadata.to_pybytes(), number_bytes(0), batch.body.size)
    block = head + batch.body.to_pybytes()
    descriptor = b"\x08\x02\x12" + bytes([len(stage)]) + stage
    command = b"\x0a" + bytes([len(descriptor)]) + descriptor + flight_data_head(schema, b"", 0)
    with Peer(here).greet() as peer:
        peer.call(1, "DoExchange")
        peer.send(data(1, struct.pack(">BI", 0, len(command)) + command))
        sent = 5 + len(command)
        room = INITIAL_WINDOW
        answers = 0
        received = peer.received()
        message = struct.pack(">BI", 0, len(block)) + block
        for _ in range(20):
            for at in range(0, len(message), 16_000):
                piece = message[at : at + 16_000]
                while sent + len(piece) > room:
                    one = next(received)
                    answers += one.kind == Frame.DATA
                    if one.kind == Frame.WINDOW_UPDATE and one.stream == 1:
                        room += int.from_bytes(one.payload, "big")
                peer.send(data(1, piece))
                sent += len(piece)
        peer.send(frame(Frame.DATA, Flag.END_STREAM, 1))
        for one in received:  # the answer may come behind the last of the window
            answers += one.kind == Frame.DATA
            if one.kind == Frame.HEADERS and one.flags & Flag.END_STREAM:
                break
        assert answers == 1  # to the first block: the others were discarded


def test_a_handshake_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmqstore_spark.server.flight.listener._STRANGER_SECONDS", 0.3)
    made = make_certificates(tmp_path / "certificates")
    settings = {"tls_cert_path": made.server_cert, "tls_key_path": made.server_key}
    with served(tmp_path / "store", **settings) as here, Peer(here) as peer:
        peer.send(b"\x16\x03\x01")  # the beginning of a ClientHello
        assert not list(peer.received())
        eventually(lambda: here.server.connections == 0)


def test_a_stranger_sends_so_many_frames_and_no_more(guarded: Served) -> None:
    with Peer(guarded).greet() as peer:
        peer.send(*[frame(Frame.PING, 0, 0, bytes(8))] * 300)
        assert peer.goodbye() == ErrorCode.ENHANCE_YOUR_CALM


NOTHING = {
    "PRIORITY": frame(Frame.PRIORITY, 0, 1, bytes(5)),
    "PING": frame(Frame.PING, 0, 0, bytes(8)),
    "PING's answer": frame(Frame.PING, Flag.ACK, 0, bytes(8)),
    "SETTINGS": frame(Frame.SETTINGS, 0, 0),
    "SETTINGS' answer": frame(Frame.SETTINGS, Flag.ACK, 0),
    "WINDOW_UPDATE": frame(Frame.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)),
    "WINDOW_UPDATE of a call": frame(Frame.WINDOW_UPDATE, 0, 1, struct.pack(">I", 1)),
    "RST_STREAM": frame(Frame.RST_STREAM, 0, 7, bytes(4)),
    "GOAWAY": frame(Frame.GOAWAY, 0, 0, bytes(8)),
    "DATA": frame(Frame.DATA, 0, 1),
    "unknown": b"\0\0\0\xfa\0\0\0\0\1",
}


@pytest.mark.threat("Resource limits")
@pytest.mark.parametrize("kind", NOTHING)
def test_a_client_sends_so_many_frames_that_carry_nothing_and_no_more(
    here: Served, kind: str
) -> None:
    with Peer(here).greet() as peer:
        peer.call(1, "DoPut")
        peer.until(Frame.WINDOW_UPDATE)  # the call was admitted
        peer.send(*[NOTHING[kind]] * 20_000)
        assert peer.goodbye() == ErrorCode.ENHANCE_YOUR_CALM
    eventually(lambda: here.server.connections == 0)


@pytest.mark.threat("Resource limits")
def test_a_client_gives_up_so_many_calls_and_no_more(here: Served) -> None:
    with Peer(here).greet() as peer:
        peer.call(1, "DoPut")
        peer.until(Frame.WINDOW_UPDATE)
        block = header_block([(":method", "POST"), (":path", PATH + "DoPut")], is_response=False)
        peer.send(
            *(
                frame(Frame.HEADERS, Flag.END_HEADERS, number, block)
                + frame(Frame.RST_STREAM, 0, number, bytes(4))
                for number in range(3, 20_001, 2)
            )
        )
        assert peer.goodbye() == ErrorCode.ENHANCE_YOUR_CALM


def test_many_small_puts_and_calls_of_one_client_are_no_flood(here: Served) -> None:
    with StoreClient(here.endpoint, retries=0) as client:
        client.create_topic("small")
        with client.put_stream() as puts:
            for _ in range(3_000):
                assert puts.put(block_of([b"a"], topic="small")).is_ok
        for _ in range(1_500):
            client.topics()
        with client.put_stream() as puts:
            assert puts.put(block_of([b"b"], topic="small")).is_ok


def test_headers_in_too_many_pieces_are_refused(here: Served) -> None:
    with Peer(here).greet() as peer:
        peer.send(frame(Frame.HEADERS, 0, 1, b"\x83"))
        peer.send(*[frame(Frame.CONTINUATION, 0, 1)] * 20)
        assert peer.goodbye() == ErrorCode.ENHANCE_YOUR_CALM


def test_pings_are_answered(here: Served) -> None:
    with Peer(here).greet() as peer:
        peer.send(frame(Frame.PING, 0, 0, b"01234567"))
        pong = peer.until(Frame.PING)
        assert (pong.flags, pong.payload) == (Flag.ACK, b"01234567")


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("fuzzed") / "store") as found:
        yield found


FRAMES = st.builds(
    frame,
    st.sampled_from(list(Frame)),
    st.integers(0, 255),
    st.integers(0, 5),
    st.one_of(st.binary(max_size=64), st.just(header_block([(":path", PATH + "DoExchange")],
                                                          is_response=False))),
)  # fmt: skip


@pytest.mark.threat("Resource limits")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(FRAMES, st.binary(max_size=40)), max_size=12))
def test_any_frames_end_their_connection_and_no_other(fuzzed: Served, frames: list[bytes]) -> None:
    with Peer(fuzzed).greet() as peer:
        try:
            peer.send(*frames)
            peer.socket.shutdown(socket.SHUT_WR)
            for _ in peer.received():
                pass
        except OSError:
            pass
    with Peer(fuzzed).greet() as peer:
        peer.send(frame(Frame.PING, 0, 0, b"01234567"))
        assert peer.until(Frame.PING).payload == b"01234567"
    eventually(lambda: fuzzed.server.calls_under_way == 0)


@given(
    st.lists(
        st.tuples(
            st.text(st.sampled_from("abcdefgh-"), min_size=1, max_size=20),
            st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=3000),
        ),
        max_size=4,
    )
)
def test_headers_are_decoded_as_they_were_written(headers: list[tuple[str, str]]) -> None:
    expected: dict[str, list[str]] = {":status": ["200"]}
    for name, value in headers:
        expected.setdefault(name, []).append(value)
    assert read_headers(hpack.Decoder(), header_block(headers, is_response=True)) == expected
