"""A client of the store process's protocol that has nothing of the package's clients.

What it sends is encoded here, so that it can be wrong: half a frame, a length that lies, a body
that never comes.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from rmqstore_spark.wire.protocol import Code
from tests.support.accounts import KEY

__all__ = ["Answer", "PlainClient", "connected", "head_of", "request"]

_SMALL = 1 << 16


class Answer(NamedTuple):
    """An answer.

    Attributes:
        number: of its request.
        status: why it is a refusal; empty for an answer that is none.
        remark: what the refusal says.
        body: its bytes.
    """

    number: int
    status: str
    remark: str
    body: bytes

    @property
    def acknowledged(self) -> str:
        """The status of a block, if this is an acknowledgement."""
        return self.status or self.body[20 : 20 + self.body[17]].decode()

    def json(self) -> Any:
        """The body of the answer to an action."""
        assert not self.status, self
        return json.loads(self.body)


def head_of(code: int, size: int, number: int = 0, **fields: Any) -> bytes:
    """All of a request before its body.

    Args:
        code: the code of the request.
        size: bytes of the body.
        number: of the request.
        fields: of the header beside these, or in place of them.
    """
    told = {"code": int(code), "flag": 0, "language": "OTHER", "opaque": number, "version": 409}
    header = json.dumps({**told, **fields}).encode()
    return struct.pack(">iI", 4 + len(header) + size, len(header)) + header


def request(code: int, body: bytes = b"", number: int = 0, **fields: Any) -> bytes:
    """A request; see `head_of`."""
    return head_of(code, len(body), number, **fields) + body


def end_sending(connection: socket.socket) -> None:
    """Send no more; what comes can still be read.

    Raises:
        ConnectionError: the peer has reset the connection; the system may call it not connected.
    """
    try:
        connection.shutdown(socket.SHUT_WR)
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise
        raise ConnectionResetError(errno.ECONNRESET, "it was reset before") from error


def connected(
    endpoint: str, seconds: float = 20.0, tls: ssl.SSLContext | None = None
) -> socket.socket:
    """Connect to an endpoint.

    Args:
        endpoint: as the process names it.
        seconds: how long each operation may take.
        tls: what verifies the process, if its port is encrypted.
    """
    scheme, _, place = endpoint.partition(":")
    if scheme == "unix":
        opened = socket.socket(socket.AF_UNIX)
        opened.settimeout(seconds)
        opened.connect(place.removeprefix("//"))
        return opened
    host, _, port = place.removeprefix("//").rpartition(":")
    opened = socket.create_connection((host, int(port)), seconds)
    if tls is None:
        return opened
    try:
        return tls.wrap_socket(opened, server_hostname=host)
    except OSError:
        opened.close()
        raise


class PlainClient:
    """A connection.

    Args:
        endpoint, seconds, tls: see `connected`.
        secret: of the account KEY, with which it logs in at once; empty: it does not.
    """

    def __init__(
        self,
        endpoint: str,
        secret: str = "",
        *,
        seconds: float = 20.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.socket = connected(endpoint, seconds, tls)
        if secret:
            answer = self.log_in(secret)
            assert not answer.status, answer

    def __enter__(self) -> PlainClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def send(self, *data: bytes) -> None:
        """Send bytes, as far as the process still takes them."""
        small = sum(map(len, data)) <= _SMALL
        with suppress(ConnectionError):
            for part in (b"".join(data),) if small else data:  # the large ones are not copied
                self.socket.sendall(part)

    def ask(
        self, code: int, body: bytes | dict[str, Any] = b"", number: int = 0, **fields: Any
    ) -> Answer:
        """Send a request, with a body of bytes or of JSON; return the answer."""
        encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send(head_of(code, len(encoded), number, **fields), encoded)
        return self.answer()

    def log_in(self, secret: str, key: str = KEY) -> Answer:
        """Log in; return the last answer."""
        challenge = self.ask(Code.LOGIN, extFields={"AccessKey": key})
        if challenge.status or not challenge.body:  # refused, or nobody needs to log in
            return challenge
        return self.ask(
            Code.LOGIN, self.proof(secret, challenge.body), extFields={"AccessKey": key}
        )

    def proof(self, secret: str, challenge: bytes, nonce: bytes = bytes(32)) -> bytes:
        """What answers a challenge on this connection."""
        tls = isinstance(self.socket, ssl.SSLSocket) and self.socket.getpeercert(binary_form=True)
        server = hashlib.sha256(tls).digest() if tls else b""
        signed = b"rmqstore login\0" + nonce + challenge + server
        return nonce + hmac.digest(secret.encode(), signed, "sha256")

    def begin(self, **command: Any) -> None:
        """Begin a stream of blocks."""
        self.send(request(Code.BLOCKS, json.dumps(command).encode()))

    def put(self, block: bytes, number: int = 0) -> str:
        """Send a block in a stream; return the status of its acknowledgement, or of a refusal."""
        return self.ask(Code.BLOCK, block, number).acknowledged

    def answer(self) -> Answer:
        """Read the next answer.

        Raises:
            ConnectionError: the connection ended before one.
        """
        length, mark = struct.unpack(">iI", self._read(8))
        header = json.loads(self._read(mark & 0xFFFFFF))
        body = self._read(length - 4 - (mark & 0xFFFFFF))
        fields = header.get("extFields") or {}
        assert header["flag"] & 1, header
        assert (header["code"] == 0) != ("status" in fields), header
        remark = header.get("remark") or ""
        return Answer(header["opaque"], fields.get("status", ""), remark, body)

    def answers(self) -> Iterator[Answer]:
        """Read answers until the process ends the connection."""
        with suppress(ConnectionError):
            while True:
                yield self.answer()

    def _read(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            data = self.socket.recv(min(count - len(found), 1 << 20))
            if not data:
                raise ConnectionError("the connection was closed")
            found += data
        return bytes(found)
