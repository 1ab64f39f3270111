"""Connections to servers of RocketMQ's protocol, for code that does not run in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Final, TypeVar

import uvloop

from rmqstore_spark.remoting.client import RemotingClient

__all__ = ["RemotingSession", "together"]

T = TypeVar("T")

_AT_ONCE: Final = 256


class RemotingSession:
    """Connections, each opened when it is first used, and again after it broke.

    Its event loop runs only during `run`, in the thread of the caller. So nothing is read between
    two calls: leave no request on the way. Use it in one thread.

    Args:
        timeout_s: seconds in which something must have been answered, with all that is tried again.
        answer_s: seconds that one server may take for one answer.
    """

    def __init__(self, timeout_s: float, answer_s: float) -> None:
        self.timeout_s = timeout_s
        self.answer_s = min(answer_s, timeout_s)
        self._loop = uvloop.new_event_loop()
        self._clients: dict[str, RemotingClient] = {}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something until it has ended, and return its result."""
        return self._loop.run_until_complete(_awake(work))

    def client(self, address: str) -> RemotingClient:
        """Return the connection to a server. Call this while `run` runs.

        Raises:
            ServiceError: the address is none.
        """
        found = self._clients.get(address)
        if found is None:
            found = self._clients[address] = RemotingClient(address)
        return found

    def close(self) -> None:
        """Close all connections."""
        if self._loop.is_closed():
            return
        self._loop.run_until_complete(self._close())
        self._loop.close()

    async def _close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()


async def _awake(work: Coroutine[Any, Any, T]) -> T:
    """Take note of connections that were closed meanwhile, before they are used."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return await work


async def together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Do some things at the same time, and return their results in order.

    None of them is on the way when this ends, also if one fails.
    """
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(work: Coroutine[Any, Any, T]) -> T:
        async with places:
            return await work

    found = await asyncio.gather(*map(one, works), return_exceptions=True)
    done: list[T] = []
    for result in found:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done
