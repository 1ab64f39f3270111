"""A connection to a broker for a thread without an event loop: it stays until it is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rmqstore_spark.errors import ServiceError
from rmqstore_spark.remoting.access.identity import ClientIdentity
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.command import Command


class BrokerLink:
    """Asks a broker. One thread at a time may use it; close it in the end.

    Args:
        address: the broker, as `host:port`.
        identity: as whom this side asks.
    """

    def __init__(self, address: str, identity: ClientIdentity) -> None:
        self._address = address
        self._identity = identity
        self._loop = asyncio.new_event_loop()
        self._client: RemotingClient | None = None

    def ask(self, requests: Sequence[Command]) -> list[bytes]:
        """Return the bodies of the answers to requests that change nothing.

        The broker may have closed a connection from before: then they are asked on a new one.

        Raises:
            ServiceError: the broker cannot be reached, or does not answer.
            RemotingError: it refuses a request.
        """
        return self._loop.run_until_complete(self._ask(requests))

    def close(self) -> None:
        """End the connection."""
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _ask(self, requests: Sequence[Command]) -> list[bytes]:
        if self._client is not None:
            try:
                return await _bodies(self._client, requests)
            except ServiceError:
                if self._client.is_open:
                    raise
                await self._end()
        self._client = await RemotingClient.connect(
            self._address, tls=self._identity.tls, credentials=self._identity.credentials
        )
        return await _bodies(self._client, requests)

    async def _end(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.end()


async def _bodies(client: RemotingClient, requests: Sequence[Command]) -> list[bytes]:
    return [(await client.ask_for(request)).body for request in requests]
