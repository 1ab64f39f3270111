"""A client: connects to a name server or broker, and asks."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from rmqstore_spark.errors import RemotingError, ServiceError
from rmqstore_spark.remoting.access.signing import SessionCredentials
from rmqstore_spark.remoting.addresses import parse_address
from rmqstore_spark.remoting.backlog import Limits, Told
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import (
    RemotingConnection,
    Request,
    RequestService,
    SharedBounds,
)
from rmqstore_spark.remoting.tls import tls_reason
from rmqstore_spark.remoting.turns import Turns

ANSWER_SECONDS: Final = 3.0
"""How long RocketMQ's clients wait for an answer, or a connection."""
_LEAVE_SECONDS: Final = 3.0
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
"""Seconds from a connection that failed to the next try; each pause is twice the one before."""


class RemotingClient:
    """Asks a name server or broker. When its connection was closed, the next call connects again.

    `limits.in_flight` calls may wait for an answer at a time. Others wait for a place, and while
    the other end does not read what was sent. Close it at the end, or use it with `async with`.

    Args:
        address: `host:port`.
        service: handles what the other end asks; by default, it is refused.
        limits: bounds of the connection.
        tls: for a server that talks TLS, see `tls.client_context`.
        credentials: with which requests are signed; None: they are not.

    Raises:
        ServiceError: the address is none.
    """

    def __init__(
        self,
        address: str,
        *,
        service: RequestService | None = None,
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: SessionCredentials | None = None,
    ) -> None:
        self._address = address
        self._host, self._port = parse_address(address)
        self._service = service or _Refusing()
        self._limits = limits or Limits()
        self._bounds = SharedBounds(self._limits)
        self._tls = tls
        self._credentials = credentials
        self._loop = asyncio.get_running_loop()
        self._turns: Turns[Request] = Turns(self._service, self._limits.group)
        self._places = asyncio.Semaphore(self._limits.in_flight)
        self._connecting = asyncio.Lock()
        self._connection: RemotingConnection | None = None
        self._is_closed = False
        self._pause = 0.0
        self._next_try = 0.0

    @classmethod
    async def connect(
        cls,
        address: str,
        *,
        service: RequestService | None = None,
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: SessionCredentials | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> RemotingClient:
        """Return a client that is connected.

        Args:
            address: `host:port`.
            service: handles what the other end asks; by default, it is refused.
            limits: bounds of the connection.
            tls: for a server that talks TLS, see `tls.client_context`.
            credentials: with which requests are signed; None: they are not.
            seconds: how long it may take.

        Raises:
            ServiceError: nobody answers there, or the address is none.
        """
        client = cls(address, service=service, limits=limits, tls=tls, credentials=credentials)
        client._connection = await client._open(seconds)
        return client

    async def __aenter__(self) -> RemotingClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    @property
    def is_open(self) -> bool:
        """Whether it is connected now."""
        return self._connection is not None and self._connection.is_open

    @property
    def holds(self) -> int:
        """Bytes in memory of what was sent and has come."""
        return 0 if self._connection is None else self._connection.holds

    async def ask(self, command: Command, seconds: float = ANSWER_SECONDS) -> Command:
        """Send a request, and return its answer, whatever its code.

        A request is sent once: if the connection closes before the answer, nobody knows whether it
        was handled.

        Args:
            command: the request.
            seconds: how long all of it may take, with connecting and waiting for a place.

        Raises:
            ServiceError: the other end cannot be reached, or no answer came in time.
            FrameError: the request does not fit a frame.
        """
        until = self._loop.time() + seconds
        if self._places.locked():
            await self._in_time(self._places.acquire(), until, command)
        else:
            await self._places.acquire()
        try:
            connection = await self._usable(until, command)
            return await connection.request(self._signed(command), until - self._loop.time())
        finally:
            self._places.release()

    def ask_now(self, command: Command, seconds: float, told: Told) -> bool:
        """Send a request at once if that has to wait for nothing, and have its answer told.

        Args:
            command: the request.
            seconds: how long an answer may take.
            told: is called with the answer, whatever its code, or a ServiceError if none comes.

        Returns:
            Whether it was sent; else, `ask` waits for a connection or a place.

        Raises:
            ServiceError: as many requests as may wait for an answer.
            FrameError: the request does not fit a frame.
        """
        connection = self._connection
        if connection is None or not (connection.is_open and connection.has_room):
            return False
        connection.call(self._signed(command), seconds, told)
        return True

    async def ask_for(self, command: Command, seconds: float = ANSWER_SECONDS) -> Command:
        """Send a request, and return its answer of success.

        Raises:
            RemotingError: the other end refuses the request.
            ServiceError: the other end cannot be reached, or no answer came in time.
            FrameError: the request does not fit a frame.
        """
        answer = await self.ask(command, seconds)
        if answer.code != ResponseCode.SUCCESS:
            raise RemotingError(answer.code, answer.remark or "the request is refused")
        return answer

    async def tell(self, command: Command, seconds: float = ANSWER_SECONDS) -> None:
        """Send a request that nobody answers.

        Args:
            command: the request.
            seconds: how long connecting and waiting may take until it is sent.

        Raises:
            ServiceError: the other end cannot be reached, or does not read.
            FrameError: it does not fit a frame.
        """
        connection = await self._usable(self._loop.time() + seconds, command)
        connection.one_way(self._signed(command))

    def close(self) -> None:
        """Close the connection when what was sent is written."""
        self._is_closed = True
        if self._connection is not None:
            self._connection.close()

    async def end(self) -> None:
        """Close the connection, and return when it has ended: TLS takes leave of the other end."""
        self.close()
        if self._connection is not None:
            await self._connection.ended(_LEAVE_SECONDS)

    def _signed(self, command: Command) -> Command:
        return command if self._credentials is None else self._credentials.signed(command)

    async def _usable(self, until: float, command: Command) -> RemotingConnection:
        """Return the connection when it can be used."""
        has_connected = False
        while True:
            connection = self._connection
            if connection is None or not connection.is_open:
                if has_connected:
                    raise ServiceError(self._closes_at_once())
                await self._in_time(self._reconnect(), until, command)
                has_connected = True
            elif connection.has_room:
                return connection
            else:
                await self._in_time(connection.out.wait_for_room(), until, command)

    async def _in_time(
        self, waiting: Coroutine[Any, Any, object], until: float, command: Command
    ) -> None:
        try:
            await asyncio.wait_for(waiting, max(until - self._loop.time(), 0))
        except asyncio.TimeoutError:
            raise ServiceError(
                f"Request {command.code} could not be sent to {self._address} in time."
            ) from None

    async def _reconnect(self) -> None:
        async with self._connecting:
            if self._is_closed:
                raise ServiceError(f"The connection to {self._address} is closed.")
            if self.is_open:
                return
            await asyncio.sleep(max(self._next_try - self._loop.time(), 0))
            try:
                self._connection = await self._open(ANSWER_SECONDS)
                self._pause = 0.0
            except ServiceError:
                self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
                raise
            finally:
                self._next_try = self._loop.time() + self._pause

    async def _open(self, seconds: float) -> RemotingConnection:
        address = self._address
        try:
            _, connection = await asyncio.wait_for(
                self._loop.create_connection(
                    lambda: RemotingConnection(self._service, self._turns, self._bounds),
                    self._host, self._port, ssl=self._tls,
                ),
                seconds,
            )  # fmt: skip
        except asyncio.TimeoutError:
            raise ServiceError(f"{address} did not accept a connection in {seconds:g} s.") from None
        except ssl.SSLError as error:
            text = f"{address} did not begin a TLS session: {tls_reason(error)}."
            raise ServiceError(text) from error
        except (ConnectionResetError, ConnectionAbortedError) as error:
            if self._tls is None:
                raise ServiceError(self._closes_at_once()) from None
            text = f"{address} closed the connection before a TLS session began."
            raise ServiceError(text) from error
        except OSError as error:
            number = error.errno or 0  # negative if a name is not known
            reason = os.strerror(number) if number > 0 else error.strerror or error
            raise ServiceError(f"{address} cannot be reached: {reason}.") from None
        return connection

    def _closes_at_once(self) -> str:
        text = f"{self._address} closed the connection at once."
        return text if self._tls is None else f"{text} It may want a certificate of its clients."


class _Refusing:
    """Refuses what the other end asks."""

    def opened(self, connection: RemotingConnection) -> None:
        """Do nothing."""

    def requests(self, requests: Sequence[Request]) -> None:
        for request in requests:
            command = request.command
            remark = f" request type {command.code} not supported"
            request.reply(command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))

    def closed(self, connection: RemotingConnection) -> None:
        """Do nothing."""
