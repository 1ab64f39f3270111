"""A connection on which many requests are on the way at a time, for a thread that waits."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from typing import Final

from rmqstore_spark.printable import escaped
from rmqstore_spark.remoting.addresses import parse_address
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.frames import FrameReader, encode_frame

__all__ = ["PipeError", "RemotingPipe"]

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

    Raises:
        ServiceError: the address is none.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._place = parse_address(address)
        self._socket: socket.socket | None = None
        self._reader = FrameReader()

    def open(self, seconds: float) -> None:
        """Connect, if there is no connection, or if the server has closed it since the last use.

        Raises:
            PipeError: nobody listens there, or does not answer in time.
        """
        if self._socket is not None and _is_over(self._socket):
            self.close()
        if self._socket is not None:
            return
        try:
            found = socket.create_connection(self._place, min(seconds, _CONNECT_SECONDS))
        except OSError as error:
            raise self._broken("cannot be reached", error) from None
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._reader = found, FrameReader()

    def send(self, commands: Iterable[Command], seconds: float) -> None:
        """Send requests together.

        Raises:
            PipeError: the connection broke, or the server does not read.
            FrameError: a request does not fit a frame.
        """
        frames = [encode_frame(command) for command in commands]
        assert self._socket is not None  # noqa: S101  # the caller opened it
        self._socket.settimeout(seconds)
        try:
            self._socket.sendall(b"".join(frames))
        except OSError as error:
            raise self._broken("does not read requests", error) from None

    def receive(self, seconds: float) -> list[Command]:
        """Wait for answers; return those that have come, at least one.

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
                raise PipeError(f"{self._address} closed the connection.")
            commands, wrong = self._reader.feed(data)
            if wrong is not None:
                told = escaped(str(wrong))
                raise PipeError(f"{self._address} sent what is not RocketMQ's protocol: {told}.")
            answers = [command for command in commands if command.is_response]
            if answers:
                return answers

    def close(self) -> None:
        """Close the connection; what was sent may still be handled."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _broken(self, what: str, error: OSError) -> PipeError:
        reason = "no answer in time" if isinstance(error, TimeoutError) else str(error)
        if error.errno is not None and error.errno > 0:
            reason = os.strerror(error.errno)
        return PipeError(f"{self._address} {what}: {reason}.")


def _is_over(connection: socket.socket) -> bool:
    """Return whether the other end has closed a connection, or sent what nobody asked for."""
    connection.setblocking(False)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
