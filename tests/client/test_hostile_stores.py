"""Store processes that answer with what only an attacker, or a damaged process, sends."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmqstore_spark.client import PutStream, StoreClient
from rmqstore_spark.client.endpoint_files import EndpointFiles
from rmqstore_spark.client.link import Link
from rmqstore_spark.errors import RefusedError, RmqStoreError, ServiceError
from rmqstore_spark.files.systems.base import FileRange
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.frames import encode_frame
from rmqstore_spark.wire.codec import encode
from rmqstore_spark.wire.protocol import (
    BUSY,
    ILLEGAL,
    PROTOCOL,
    STATUS_FIELD,
    Acknowledgement,
    Code,
    pieces_head,
)
from rmqstore_spark.wire.reading import FileEntry, ListReply, OpenReply, TopicSettings
from tests.client.hostile import Answering, hostile
from tests.support.certificates import make_certificates
from tests.support.waiting import PATIENCE

SHORT = 0.5
LARGE = 64 << 20
"""Bytes: more than the sockets of both sides hold."""


@contextmanager
def calling(answering: Answering, **options: Any) -> Iterator[StoreClient]:
    options = {"timeout_s": SHORT, "retries": 0, "connect_s": None, **options}
    with hostile(answering) as address, StoreClient(f"rmq://{address}", **options) as client:
        yield client


def says(data: bytes) -> Answering:
    """Answer with these bytes, and keep the connection."""

    def answering(connection: socket.socket, _: Command, ended: threading.Event) -> None:
        connection.sendall(data)
        ended.wait(PATIENCE)

    return answering


def drips(front: bytes) -> Answering:
    """Send these bytes, and then what never ends."""

    def answering(connection: socket.socket, _: Command, ended: threading.Event) -> None:
        connection.sendall(front)
        while not ended.wait(0.05):
            connection.sendall(b"\0")

    return answering


def frame(header: bytes, size: int) -> bytes:
    """A frame without its body, of `size` bytes."""
    return struct.pack(">II", 4 + len(header) + size, len(header)) + header


HEADER = Command(0, flag=1).encode_header()

NO_FRAMES = {
    "too short": b"\0\0\0\2{}{}",
    "negative": b"\xff\xff\xff\xff\0\0\0\0",
    "a header longer than its frame": struct.pack(">II", 100, 200),
    "a header without end": struct.pack(">II", 1 << 30, 1 << 17),
    "no header": frame(b"{", 0),
    "an array": frame(b"[]", 0),
    "a request": encode_frame(Command(Code.OPEN)),
    "a refusal without a status": encode_frame(Command(3, flag=1, remark="not supported")),
    "a body that is too large": frame(HEADER, (64 << 20) + 1),
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
}


@pytest.mark.parametrize("data", NO_FRAMES.values(), ids=NO_FRAMES)
def test_what_is_no_answer_is_refused_before_more_is_read(data: bytes) -> None:
    with (
        calling(says(data), timeout_s=PATIENCE) as client,
        pytest.raises(ServiceError, match="is not a store process of this version"),
    ):
        client.topics()


@pytest.mark.parametrize(
    "front",
    [struct.pack(">II", 1 << 20, 30_000), frame(HEADER, 1 << 20)],
    ids=["header", "body"],
)
def test_an_answer_that_drips_is_given_up_in_time(front: bytes) -> None:
    began = time.monotonic()
    with calling(drips(front)) as client, pytest.raises(ServiceError, match=r"within 0\.5 s"):
        client.topics()
    assert time.monotonic() - began < PATIENCE / 2


def test_an_answer_to_nothing_is_not_taken_for_that_of_the_next_request() -> None:
    reply = OpenReply(PROTOCOL, "id", "broker-a", True, False, 1, 1, 1, True, 4, {})
    told = encode(reply)
    forged = encode(replace(reply, topics={"forged": TopicSettings(1, 1, 6)}))
    opened: list[int] = []

    def answering(connection: socket.socket, asked: Command, ended: threading.Event) -> None:
        opened.append(1)
        both = encode_frame(asked.answer(body=told)) + encode_frame(asked.answer(body=forged))
        connection.sendall(both)
        ended.wait(PATIENCE)

    with calling(answering, timeout_s=PATIENCE) as client:
        for number in range(1, 4):
            assert client.topics() == {}
            assert len(opened) == number


def test_a_handshake_that_is_never_answered_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        endpoint = f"rmqs://127.0.0.1:{listening.getsockname()[1]}"
        began = time.monotonic()
        with (
            StoreClient(endpoint, timeout_s=SHORT, retries=0, connect_s=None) as client,
            pytest.raises(ServiceError, match=r"within 0\.5 s"),
        ):
            client.topics()
        assert time.monotonic() - began < 8


# ---- readings -----------------------------------------------------------------------------------


def pieces(*lengths: int, last: tuple[bool, ...] = (), data: bytes | None = None) -> bytes:
    """The body of an answer to READ, whose pieces are all last if `last` is not given."""
    marks = np.array(last or [True] * len(lengths), bool)
    body = bytes(sum(lengths)) if data is None else data
    return pieces_head(np.array(lengths, np.int64), marks) + body


READINGS = {
    "empty": b"",
    "no pieces": pieces(),
    "cut off": pieces(4)[:6],
    "more pieces than bytes": (1 << 18).to_bytes(4, "little"),
    "pieces without end": (1 << 31).to_bytes(4, "little") + bytes(64),
    "fewer bytes than its pieces": pieces(4, data=b"abc"),
    "more bytes than its pieces": pieces(4, data=b"abcde"),
    "more bytes than were asked for": pieces(5),
    "more in two pieces": pieces(3, 3, last=(False, True)),
    "a range too many": pieces(2, 2),
}


def serving(body: bytes) -> Answering:
    """Answer each READ with a body, again and again."""

    def answering(connection: socket.socket, asked: Command, ended: threading.Event) -> None:
        while not ended.is_set():
            connection.sendall(encode_frame(asked.answer(body=body)))

    return answering


def read_bytes(files: EndpointFiles) -> object:
    return files.read(f"{files.root}/commitlog/0", 0, 4)


def fill(files: EndpointFiles) -> object:
    return files.read_into(f"{files.root}/commitlog/0", 0, np.empty(4, np.uint8))


@contextmanager
def reading(answering: Answering, **options: Any) -> Iterator[EndpointFiles]:
    options = {"retries": 0, "connect_s": None, **options}
    with hostile(answering) as address:
        files = EndpointFiles(f"rmq://{address}", **options)
        yield files
        files.close()


@pytest.mark.parametrize("read", [read_bytes, fill])
@pytest.mark.parametrize("body", READINGS.values(), ids=READINGS)
def test_pieces_that_are_not_what_was_asked_for(
    body: bytes, read: Callable[[EndpointFiles], object]
) -> None:
    words = "sent other ranges than requested|is not a store process of this version"
    with reading(serving(body)) as files, pytest.raises(RmqStoreError, match=words):
        read(files)


@pytest.mark.parametrize("read", [read_bytes, fill])
def test_more_bytes_than_were_asked_for_are_not_received(
    read: Callable[[EndpointFiles], object],
) -> None:
    """An answer announces 1 GiB, and sends nothing of it."""
    size = 1 << 30
    head = pieces_head(np.array([size]), np.array([True]))
    data = frame(HEADER, len(head) + size) + head
    with (
        reading(says(data), timeout_s=PATIENCE) as files,
        pytest.raises(RmqStoreError, match="other ranges"),
    ):
        read(files)


@pytest.mark.parametrize("read", [read_bytes, fill])
def test_a_range_that_never_ends_is_given_up(read: Callable[[EndpointFiles], object]) -> None:
    empty = serving(pieces(0, last=(False,)))
    with reading(empty, timeout_s=SHORT) as files, pytest.raises(ServiceError, match=r"0\.5 s"):
        read(files)


def two_parts(files: EndpointFiles) -> object:
    path = f"{files.root}/commitlog/0"
    return files.read_many([FileRange(path, 0, 4), FileRange(path, 8, 4)])


@pytest.mark.parametrize("lengths", [(5, 3), (5, 2), (3, 5)])
def test_a_range_that_is_longer_than_asked_for_is_not_cut(lengths: tuple[int, int]) -> None:
    with (
        reading(serving(pieces(*lengths))) as files,
        pytest.raises(RmqStoreError, match="other ranges"),
    ):
        two_parts(files)


@pytest.mark.parametrize("path", ["config/topics.json", "commitlogs/0", "commitlog", ""])
def test_files_of_another_folder_are_not_listed(path: str) -> None:
    body = encode(ListReply((FileEntry(path, 5, False, 0),)))
    with reading(serving(body)) as files:
        folder = f"{files.root}/commitlog"
        with pytest.raises(RmqStoreError, match=f"{folder}: .* another folder"):
            files.list(folder)
        told: list[tuple[str, str]] = []
        assert not list(files.walk(folder, 1, lambda at, e: told.append((at, type(e).__name__))))
        assert told == [("", "RmqStoreError")]


def test_a_file_of_less_than_nothing() -> None:
    def answering(connection: socket.socket, asked: Command, ended: threading.Event) -> None:
        entry = encode(FileEntry("commitlog/0", -5, False, 0))
        connection.sendall(encode_frame(asked.answer(body=entry)))
        ended.wait(PATIENCE)

    with (
        reading(answering, timeout_s=SHORT) as files,
        pytest.raises(ServiceError, match="does not understand"),
    ):
        files.size(f"{files.root}/commitlog/0")


# ---- streams ------------------------------------------------------------------------------------


def ack(number: int, rows: int = 1) -> bytes:
    return encode_frame(
        Command(0, body=Acknowledgement(number, "PUT_OK", rows).to_bytes(), flag=1, opaque=number)
    )


def put_all(stream: PutStream, *blocks: bytes) -> None:
    for block in blocks:
        stream.send(block)
    stream.drain()


ACKNOWLEDGEMENTS = {
    "out of order": ack(1),
    "of what was never sent": ack(7),
    "twice": ack(0) + ack(0),
    "empty": encode_frame(Command(0, flag=1)),
    "nonsense": encode_frame(Command(0, flag=1, body=b"\xff" * 40)),
    "too large": frame(HEADER, (64 << 20) + 1),
}


@pytest.mark.parametrize("data", ACKNOWLEDGEMENTS.values(), ids=ACKNOWLEDGEMENTS)
def test_acknowledgements_that_no_store_sends(data: bytes) -> None:
    with calling(says(data), timeout_s=PATIENCE) as client:
        stream = client.put_stream()
        with pytest.raises(ServiceError, match="does not understand"):
            put_all(stream, b"block", b"block")
        stream.close()


def test_blocks_that_were_not_sent_again_yet_cannot_be_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All blocks are to be sent again, and the first answer acknowledges all of them."""
    blocks = 20
    began: list[int] = []
    sent, told = threading.Event(), threading.Event()

    def answering(connection: socket.socket, _: Command, ended: threading.Event) -> None:
        if len(began) == 1:
            assert sent.wait(PATIENCE)
        else:
            connection.sendall(b"".join(map(ack, range(blocks))))
            told.set()
            ended.wait(PATIENCE)

    send = Link.send

    def answered(self: Link, code: Code, *arguments: Any) -> None:
        if code == Code.BLOCKS:
            began.append(1)
        send(self, code, *arguments)
        if code == Code.BLOCK and len(began) > 1:
            assert told.wait(PATIENCE)

    monkeypatch.setattr(Link, "send", answered)
    with calling(answering, retries=3, timeout_s=PATIENCE) as client:
        stream = client.put_stream(resends=True)
        for _ in range(blocks):
            stream.send(b"block")
        sent.set()
        with pytest.raises(ServiceError, match="block 1 is acknowledged out of order"):
            stream.drain()
        stream.close()


def refuse(connection: socket.socket, asked: Command, status: str) -> None:
    said = Command(1, {STATUS_FIELD: status}, remark="Why.", opaque=asked.opaque, flag=1)
    connection.sendall(encode_frame(said))


def refuses_and_goes(connection: socket.socket, asked: Command, _: threading.Event) -> None:
    """Refuse, and close the connection with unread bytes, which breaks it at once."""
    refuse(connection, asked, ILLEGAL)


def refuses_and_stays(connection: socket.socket, asked: Command, ended: threading.Event) -> None:
    """Refuse, and read nothing any more."""
    refuse(connection, asked, ILLEGAL)
    ended.wait(PATIENCE)


def refuses_and_parts(connection: socket.socket, asked: Command, ended: threading.Event) -> None:
    """Refuse, say no more, and drop what comes, as a store process does."""
    refuse(connection, asked, ILLEGAL)
    socket.socket.shutdown(connection, socket.SHUT_WR)
    while not ended.is_set() and connection.recv(1 << 20):
        continue


@pytest.mark.parametrize(
    ("answering", "encrypted"),
    [
        (refuses_and_goes, False),  # OpenSSL does not always give what came before the end
        (refuses_and_stays, False),
        (refuses_and_stays, True),
        (refuses_and_parts, False),
        (refuses_and_parts, True),
    ],
)
def test_a_refusal_that_comes_while_a_block_is_sent_is_told(
    answering: Answering, encrypted: bool, tmp_path: Path
) -> None:
    wrap = None
    options: dict[str, Any] = {}
    if encrypted:
        made = make_certificates(tmp_path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(made.server_cert, made.server_key)
        wrap, options = partial(context.wrap_socket, server_side=True), {"tls_ca": made.ca}
    scheme = "rmqs" if encrypted else "rmq"
    with (
        hostile(answering, wrap) as address,
        StoreClient(f"{scheme}://{address}", retries=0, connect_s=None, **options) as client,
    ):
        stream = client.put_stream()
        with pytest.raises(RefusedError, match="Why") as caught:
            stream.send(bytes(LARGE))
        stream.close()
    assert caught.value.status == ILLEGAL


def ask_much(client: StoreClient) -> None:
    calls = client.connection
    calls.repeated(
        lambda: calls.exchange(Code.ABORT, bytes(LARGE), Link.answer, calls.timeout_s),
        repeat=False,
    )


def test_a_refusal_that_comes_while_a_request_is_sent_is_told() -> None:
    with (
        calling(refuses_and_goes, timeout_s=PATIENCE) as client,
        pytest.raises(RefusedError, match="Why"),
    ):
        ask_much(client)


def takes_little(connection: socket.socket, _: Command, ended: threading.Event) -> None:
    """Take some bytes ten times a second, and answer nothing."""
    while not ended.wait(0.1):
        connection.recv(64 << 10)


def takes_nothing(_: socket.socket, __: Command, ended: threading.Event) -> None:
    ended.wait(PATIENCE)


def acknowledges_one(connection: socket.socket, _: Command, ended: threading.Event) -> None:
    """Acknowledge the first block, and stand still within the next one."""
    connection.sendall(ack(0))
    ended.wait(PATIENCE)


@pytest.mark.parametrize("answering", [takes_little, takes_nothing, acknowledges_one])
def test_a_stalled_process_ends_a_large_send_in_time(answering: Answering) -> None:
    began = time.monotonic()
    with calling(answering, timeout_s=1.0, retries=5) as client:
        stream = client.put_stream(resends=True, max_in_flight_bytes=2 * LARGE)
        with pytest.raises(ServiceError, match="did not acknowledge a block within 1 s"):
            put_all(stream, b"block", bytes(LARGE), b"block")
        with pytest.raises(ServiceError, match="did not acknowledge"):
            stream.send(b"more")
        stream.close()
    assert time.monotonic() - began < PATIENCE / 2


def test_a_stalled_process_ends_a_large_request_in_time() -> None:
    with (
        calling(takes_nothing, timeout_s=1.0) as client,
        pytest.raises(ServiceError, match="did not answer within 1 s"),
    ):
        ask_much(client)


def test_a_transient_refusal_after_all_tries_is_told() -> None:
    def busy(connection: socket.socket, asked: Command, ended: threading.Event) -> None:
        refuse(connection, asked, BUSY)
        ended.wait(PATIENCE)

    with calling(busy, retries=2, timeout_s=PATIENCE) as client:
        stream = client.put_stream()
        with pytest.raises(RefusedError, match="Why") as caught:
            stream.put(b"block")
        stream.close()
    assert caught.value.status == BUSY
