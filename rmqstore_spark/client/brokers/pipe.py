"""A connection on which many requests are on the way at a time, for a thread that waits."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Container, Iterable, Sequence
from typing import Final

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.client.contact import Place, looked_up
from rmqstore_spark.errors import ServiceError
from rmqstore_spark.remoting.access.identity import ClientIdentity
from rmqstore_spark.remoting.addresses import parse_address
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.frames import FrameReader, encode_frame
from rmqstore_spark.remoting.tls import tls_reason

_CONNECT_SECONDS: Final = 3.0
"""How long RocketMQ's clients wait for a connection."""
_CHUNK: Final = 1 << 18


class PipeError(Exception):
    """A connection cannot be used; nobody knows which of its requests were handled."""


class RemotingPipe:
    """A connection to a server of RocketMQ's protocol, opened when it is first used.

    Unlike `remoting.client` it needs no event loop. So a pull costs a third of the processor time,
    and nothing runs between two calls.

    Args:
        address: `host:port`.
        identity: with which TLS it connects, and how it signs requests.

    Raises:
        ServiceError: the address is invalid.
    """

    def __init__(self, address: str, identity: ClientIdentity) -> None:
        self.address = address
        self._place = parse_address(address)
        self._identity = identity
        self._socket: socket.socket | None = None
        self._reader = FrameReader()
        self._is_new = True

    def open(self, seconds: float) -> None:
        """Connect, if there is no connection, or if the server has closed it since the last use.

        Raises:
            PipeError: nobody listens there, or does not answer in time.
            ServiceError: the certificate of the server is invalid.
        """
        if self._socket is not None and _is_over(self._socket):
            self.close()
        if self._socket is not None:
            return
        until = time.monotonic() + min(seconds, _CONNECT_SECONDS)
        try:
            places = looked_up(*self._place, until - time.monotonic())
            found = _connected(places, until)
        except OSError as error:
            raise self._broken("cannot be reached", error) from None
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._identity.tls is not None:
            found = self._encrypted(found, self._identity.tls, seconds)
        self._socket, self._reader, self._is_new = found, FrameReader(), True

    def _encrypted(
        self, plain: socket.socket, tls: ssl.SSLContext, seconds: float
    ) -> ssl.SSLSocket:
        plain.settimeout(seconds)
        try:
            return tls.wrap_socket(plain, server_hostname=self._place[0])
        except ssl.SSLCertVerificationError as error:  # which another try would not change
            plain.close()
            raise ServiceError(
                f"{self.address} presented an invalid certificate: {tls_reason(error)}. "
                "Check the CA certificates, and that the certificate names this address."
            ) from None
        except OSError as error:
            plain.close()
            raise self._broken("did not begin a TLS session", error) from None

    def send(self, commands: Iterable[Command], seconds: float) -> None:
        """Send requests together.

        Raises:
            PipeError: the connection broke, or the server does not read.
            FrameError: a request does not fit a frame.
        """
        credentials = self._identity.credentials
        if credentials is not None:
            commands = map(credentials.signed, commands)
        frames = [encode_frame(command) for command in commands]
        assert self._socket is not None  # noqa: S101  # the caller opened it
        self._socket.settimeout(seconds)
        try:
            self._socket.sendall(b"".join(frames))
        except OSError as error:
            raise self._broken("does not read requests", error) from None

    def receive(self, seconds: float, waiting: Container[int]) -> list[Command]:
        """Wait for answers; return those that have come, at least one.

        Args:
            seconds: how long to wait. Answers that nobody waits for do not make it longer.
            waiting: the numbers (`opaque`) of the requests that have no answer yet.

        Raises:
            PipeError: none came in time, the connection broke, or what came is not an answer.
        """
        assert self._socket is not None  # noqa: S101  # the caller opened it
        until = time.monotonic() + seconds
        while True:
            self._socket.settimeout(max(until - time.monotonic(), 0.001))
            try:
                data = self._socket.recv(_CHUNK)
            except OSError as error:
                raise self._broken("does not answer", error) from None
            if not data:
                raise PipeError(f"{self.address} closed the connection.{self._guess}")
            self._is_new = False
            commands, wrong = self._reader.feed(data)
            if wrong is not None:
                told = escaped(str(wrong))
                raise PipeError(f"{self.address} sent what is not RocketMQ's protocol: {told}.")
            answers = [one for one in commands if one.is_response and one.opaque in waiting]
            if answers:
                return answers

    def close(self) -> None:
        """Close the connection; what was sent may still be handled."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @property
    def _guess(self) -> str:
        """A sentence on why a server ends a connection."""
        is_refused = self._is_new and self._identity.tls is None
        return " It may accept only TLS connections." if is_refused else ""

    def _broken(self, what: str, error: OSError) -> PipeError:
        reason = "no answer in time" if isinstance(error, TimeoutError) else str(error)
        if isinstance(error, ssl.SSLError):  # it has a number of its own
            reason = tls_reason(error)
        elif error.errno is not None and error.errno > 0:
            reason = os.strerror(error.errno)
        guess = self._guess if isinstance(error, ConnectionResetError) else ""
        return PipeError(f"{self.address} {what}: {reason}.{guess}")


def _connected(places: Sequence[Place], until: float) -> socket.socket:
    """Connect to the first of some places that accepts.

    Raises:
        OSError: none does in time.
    """
    failure: OSError = TimeoutError()
    for family, kind, protocol, _, address in places:
        found = socket.socket(family, kind, protocol)
        try:
            found.settimeout(max(until - time.monotonic(), 0.001))
            found.connect(address)
        except OSError as error:
            found.close()
            failure = error
        else:
            return found
    raise failure


def _is_over(connection: socket.socket) -> bool:
    """Return whether the other end has closed a connection, or sent what nobody asked for."""
    connection.setblocking(False)
    try:
        connection.recv(1)
    except (BlockingIOError, ssl.SSLWantReadError):  # TLS may have sent a session ticket
        return False
    except OSError:
        return True
    return True
