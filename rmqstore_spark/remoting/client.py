"""A client: connects to a name server or broker, and asks."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Sequence
from typing import Final

from rmqstore_spark.errors import RemotingError, ServiceError
from rmqstore_spark.remoting.addresses import parse_address
from rmqstore_spark.remoting.codes import ResponseCode
from rmqstore_spark.remoting.command import Command
from rmqstore_spark.remoting.connection import Connection, Request, Service
from rmqstore_spark.remoting.limits import Limits
from rmqstore_spark.remoting.turns import Turns

__all__ = ["ANSWER_SECONDS", "RemotingClient"]

ANSWER_SECONDS: Final = 3.0
"""How long RocketMQ's clients wait for an answer, or a connection."""


class RemotingClient:
    """A connection to a name server or broker. Close it at the end, or use it with `async with`.

    Args:
        connection: an open connection; `connect` makes one.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    async def connect(
        cls,
        address: str,
        *,
        service: Service | None = None,
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> RemotingClient:
        """Connect.

        Args:
            address: `host:port`.
            service: handles what the other end asks; by default, it is refused.
            limits: bounds of the connection.
            tls: for a server that talks TLS, see `tls.client_context`.
            seconds: how long it may take.

        Raises:
            ServiceError: nobody answers there, or the address is none.
        """
        host, port = parse_address(address)
        loop = asyncio.get_running_loop()
        limits = limits or Limits()
        service = service or _Refusing()
        turns: Turns[Request] = Turns(service, limits.group)
        try:
            _, connection = await asyncio.wait_for(
                loop.create_connection(
                    lambda: Connection(service, turns, limits), host, port, ssl=tls
                ),
                seconds,
            )
        except asyncio.TimeoutError:
            raise ServiceError(f"{address} did not accept a connection in {seconds:g} s.") from None
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", None) or error.reason or error
            raise ServiceError(f"{address} did not begin a TLS session: {reason}.") from None
        except (ConnectionResetError, ConnectionAbortedError):
            how = "before a TLS session began" if tls else "at once"
            raise ServiceError(f"{address} closed the connection {how}.") from None
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error
            raise ServiceError(f"{address} cannot be reached: {reason}.") from None
        return cls(connection)

    async def __aenter__(self) -> RemotingClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._connection.is_open

    async def ask(self, command: Command, seconds: float = ANSWER_SECONDS) -> Command:
        """Send a request, and return its answer, whatever its code.

        Many requests may wait at a time.

        Raises:
            ServiceError: the connection is closed, or no answer came in time.
            FrameError: the request does not fit a frame.
        """
        return await self._connection.request(command, seconds)

    async def ask_for(self, command: Command, seconds: float = ANSWER_SECONDS) -> Command:
        """Send a request, and return its answer of success.

        Raises:
            RemotingError: the other end refuses the request.
            ServiceError: the connection is closed, or no answer came in time.
            FrameError: the request does not fit a frame.
        """
        answer = await self.ask(command, seconds)
        if answer.code != ResponseCode.SUCCESS:
            raise RemotingError(answer.code, answer.remark or "the request is refused")
        return answer

    def tell(self, command: Command) -> None:
        """Send a request that nobody answers.

        Raises:
            FrameError: it does not fit a frame.
        """
        self._connection.one_way(command)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class _Refusing:
    """Refuses what the other end asks."""

    def opened(self, connection: Connection) -> None:
        """Do nothing."""

    def requests(self, requests: Sequence[Request]) -> None:
        for request in requests:
            command = request.command
            remark = f" request type {command.code} not supported"
            request.reply(command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))

    def closed(self, connection: Connection) -> None:
        """Do nothing."""
