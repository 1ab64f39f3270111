"""Calls that begin at fixed times, answered or not, so that one that waits hides no others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from rmqstore_spark.client import StoreClient
from rmqstore_spark.errors import RemotingError, ServiceError
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import message, pull
from tests.support.processes.serving import block_of

__all__ = ["QUEUES", "Calls", "pull_request", "put_calls", "remoting_calls", "send_request"]

QUEUES: Final = 8
"""Queues of the topic `orders`."""

_BODY: Final = b"x" * 100
_PERIOD: Final = 0.004
"""Seconds from the begin of a call to that of the next one."""
_PATIENCE: Final = 30.0
_PULLED: Final = 32
_PULLS: Final = 500
"""Pulls of a queue that are different."""


@dataclass
class Calls:
    """What came of calls.

    Attributes:
        seconds: from the begin of each call to its answer, also one that refuses it.
        refused: how many were refused.
        refusal: the last reason.
    """

    seconds: list[float] = field(default_factory=list)
    refused: int = 0
    refusal: str = ""

    def add(self, other: Calls) -> None:
        """Add calls that were made another time."""
        self.seconds += other.seconds
        self.refused += other.refused
        self.refusal = other.refusal or self.refusal

    def percentile(self, percent: float) -> float:
        """Return a percentile of the seconds."""
        return float(np.percentile(self.seconds, percent))


def send_request(number: int) -> Command:
    """Return a request to send one message of 100 bytes."""
    return message(_BODY, queue=number % QUEUES, d=str(QUEUES))


def pull_request(number: int) -> Command:
    """Return a request for 32 messages that are there."""
    return pull(number // QUEUES % _PULLS * _PULLED, queue=number % QUEUES)


async def remoting_calls(
    address: str, request: Callable[[int], Command], during: Awaitable[object]
) -> Calls:
    """Ask a broker, on one connection, until something else is over.

    Args:
        address: of the broker.
        request: returns the request of a call; calls are numbered from 0.
        during: what else happens.
    """
    calls = Calls()
    asking: list[asyncio.Task[None]] = []
    async with await RemotingClient.connect(address, seconds=_PATIENCE) as client:
        other = asyncio.ensure_future(during)
        while not other.done():
            asking.append(asyncio.create_task(_ask(client, request(len(asking)), calls)))
            await asyncio.wait((other,), timeout=_PERIOD)
        await asyncio.gather(*asking, other)
    return calls


async def _ask(client: RemotingClient, request: Command, calls: Calls) -> None:
    began = time.perf_counter()
    try:
        await client.ask_for(request, _PATIENCE)
    except (RemotingError, ServiceError) as error:
        calls.refused += 1
        calls.refusal = str(error)
    calls.seconds.append(time.perf_counter() - began)


def put_calls(endpoint: str, seconds: float) -> Calls:
    """Put blocks of one message of 100 bytes through one stream, one every `_PERIOD`.

    One that has to wait for the one before it is late by that much.

    Args:
        endpoint: of the store process.
        seconds: for how long.

    Raises:
        RefusedError: the store process accepts none at present.
    """
    calls = Calls()
    block = block_of([_BODY])
    with StoreClient(endpoint) as client, client.put_stream() as stream:
        due = time.perf_counter()
        until = due + seconds
        while due < until:
            time.sleep(max(due - time.perf_counter(), 0.0))
            stream.send(block)
            stream.drain()
            calls.seconds.append(time.perf_counter() - due)
            due += _PERIOD
    return calls
