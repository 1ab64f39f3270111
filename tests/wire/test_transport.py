"""What both ends send: buffers and parts of files, plain and over TLS."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rmqstore_spark.wire.transport import FileSpan, Part, PlainTransport, TlsTransport, Transport
from tests.support.certificates import Certificates, make_certificates

DATA = os.urandom(3 << 20)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["plain", "tls"])
def ends(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[list[Transport]]:
    """The two ends of a connection."""
    ours, theirs = socket.socketpair()
    found: list[Transport] = [PlainTransport(ours), PlainTransport(theirs)]
    if request.param == "tls":
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(certificates.server_cert, certificates.server_key)
        client = ssl.create_default_context(cafile=str(certificates.ca))
        with socket.create_server(("127.0.0.1", 0)) as listening:
            theirs.close()
            theirs = socket.create_connection(listening.getsockname())
            ours.close()
            ours, _ = listening.accept()
        ends = TlsTransport(ours, server), TlsTransport(theirs, client, "localhost")
        beginning = threading.Thread(target=ends[0].begin, args=(20,))
        beginning.start()
        ends[1].begin(20)
        beginning.join()
        found = [*ends]
    with closing(found[0]), closing(found[1]):
        yield found


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[int]:
    file = tmp_path / "file"
    file.write_bytes(DATA)
    descriptor = os.open(file, os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def received(end: Transport, size: int) -> bytes:
    out = bytearray(size)
    view = memoryview(out)
    while view:
        count = end.recv_into(view, 20, whole=True)
        assert count
        view = view[count:]
    return bytes(out)


def test_parts_arrive_in_their_order(ends: list[Transport], opened: int) -> None:
    parts: list[Part] = [
        *(b"a", b"", DATA[:10], FileSpan(opened, 5, 7)),
        *(DATA, FileSpan(opened, 1 << 20, 2 << 20), b"z"),
    ]
    whole = b"a" + DATA[:10] + DATA[5:12] + DATA + DATA[1 << 20 :] + b"z"
    sending = threading.Thread(target=ends[0].send, args=(parts, lambda _: None))
    sending.start()
    assert received(ends[1], len(whole)) == whole
    sending.join()


def test_a_file_that_was_cut_ends_the_sending(ends: list[Transport], opened: int) -> None:
    os.ftruncate(opened, 1000)
    with pytest.raises(OSError, match="cut"):
        ends[0].send([b"a", FileSpan(opened, 500, 1000)], lambda _: None)
    assert received(ends[1], 501) == b"a" + DATA[500:1000]
