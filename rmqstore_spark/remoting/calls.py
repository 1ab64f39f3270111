"""The requests of this side of a connection that wait for their answers."""

from __future__ import annotations

import asyncio

from rmqstore_spark.errors import ServiceError
from rmqstore_spark.remoting.codec.command import Command


class PendingCalls:
    """Requests by their number, which their answers repeat."""

    def __init__(self) -> None:
        self._opaque = 0
        self._asked: dict[int, asyncio.Future[Command]] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def number(self, command: Command) -> None:
        """Give a request its number."""
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        command.opaque = self._opaque

    async def answer_of(self, command: Command, peer: str, seconds: float) -> Command:
        """Wait for the answer of a request that was sent.

        Args:
            command: the request.
            peer: address of the other end, for the error.
            seconds: how long to wait.

        Raises:
            ServiceError: no answer came in time, or the connection was closed.
        """
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._asked[command.opaque] = answer
        try:
            return await asyncio.wait_for(answer, seconds)
        except asyncio.TimeoutError:
            raise ServiceError(
                f"{peer} did not answer request {command.code} within {seconds:.3g} s."
            ) from None
        finally:
            self._asked.pop(command.opaque, None)

    def arrived(self, answer: Command) -> None:
        """Give an answer to who waits for it; nobody does if it is late."""
        waiting = self._asked.pop(answer.opaque, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def fail(self, peer: str) -> None:
        """End all waiting: the connection is closed."""
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(ServiceError(f"The connection to {peer} was closed."))
