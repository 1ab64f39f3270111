"""Asks one of several servers that can answer alike, and another one if it fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from rmqstore_spark.client.brokers.session import RemotingSession
from rmqstore_spark.errors import ServiceError
from rmqstore_spark.printable import escaped
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.codec.command import Command

__all__ = ["AlikeServers", "Answered"]

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0
_AVOIDED: Final = 30.0
_SHOWN: Final = 200
_BUSY: Final = frozenset((ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE))


class Answered(NamedTuple):
    """An answer, and whose.

    Attributes:
        command: the answer.
        is_first: whether the first of the servers gave it: the master, if there is one.
    """

    command: Command
    is_first: bool


class AlikeServers:
    """Some servers: the name servers, or the master and the slaves of one broker name.

    They are asked in their order. One that fails is asked last for a while.

    Args:
        session: has the connections.
        addresses: at least one, as `host:port`.
        name: what they are, for errors.
    """

    def __init__(self, session: RemotingSession, addresses: Sequence[str], name: str) -> None:
        self._session = session
        self._addresses = tuple(addresses)
        self._failed_at: dict[str, float] = {}
        self.name = name

    async def ask(self, command: Command) -> Answered:
        """Send a request that may be handled twice, and return the answer, whatever its code.

        Raises:
            ServiceError: no server answers in time, or all of them stay too busy.
        """
        give_up = time.monotonic() + self._session.timeout_s
        pause = _FIRST_PAUSE
        while True:
            failures = {}
            for address in self._in_order():
                try:
                    answer = await self._ask_one(address, command)
                except ServiceError as error:
                    self._failed_at[address] = time.monotonic()
                    failures[address] = str(error)
                    continue
                return Answered(answer, address == self._addresses[0])
            if time.monotonic() + pause > give_up:
                told = " ".join(dict.fromkeys(failures.values()))
                raise ServiceError(
                    f"{self.name} does not answer. {told} Check that it runs, and that this "
                    "machine reaches its address.",
                    can_pass=True,
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _in_order(self) -> list[str]:
        now = time.monotonic()
        return sorted(
            self._addresses,
            key=lambda one: now - self._failed_at.get(one, now - _AVOIDED) < _AVOIDED,
        )

    async def _ask_one(self, address: str, command: Command) -> Command:
        answer = await self._session.client(address).ask(command, self._session.answer_s)
        if answer.code in _BUSY:
            told = escaped((answer.remark or "busy")[:_SHOWN])
            raise ServiceError(f"{address} answered: {told}.")
        return answer
