"""Answers consumers' reports of offsets when these are on disk: one write for all that gathered.

RocketMQ's clients report one-way, and wait for nothing. Who waits for an answer can rely on it.
(Upstream: ConsumerManageProcessor, which answers from memory.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from rmqstore_spark.broker.core.consumers.offsets import Offsets
from rmqstore_spark.broker.core.refusal import Refusal
from rmqstore_spark.broker.faces.remoting.lanes.handler_thread import HandlerThread
from rmqstore_spark.broker.faces.remoting.refusals import refused
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import RemotingConnection
from rmqstore_spark.remoting.dispatch import Handler


class SavedReports:
    """Lets answers to reports wait for the disk. Use it in the thread of the event loop.

    Args:
        thread: takes reports, and writes them.
        offsets: what was reported.
    """

    def __init__(self, thread: HandlerThread, offsets: Offsets) -> None:
        self._thread = thread
        self._offsets = offsets

    def handler(self, take: Handler) -> Handler:
        """Return a handler that takes a report as the given one does, and answers later.

        Args:
            take: takes a report in the thread.
        """
        # In any case: a consumer reports its progress and goes, and so may the broker.
        moved = self._thread.handler(take, always=True)

        def handle(
            connection: RemotingConnection, request: Command
        ) -> Awaitable[Command | None] | None:
            taken = moved(connection, request)  # now: requests are handled in their order
            return taken if request.is_one_way else self._saved(taken)

        return handle

    async def _saved(self, taken: asyncio.Future[Command | None]) -> Command | None:
        answer = await taken
        try:
            await self._thread.run(self._offsets.save)  # the first one writes all that gathered
        except Refusal as error:
            raise refused(error) from error
        return answer
