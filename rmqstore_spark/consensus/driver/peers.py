"""Asks the other members, over a connection to each."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from rmqstore_spark.consensus.driver.group import MemberGroup
from rmqstore_spark.consensus.driver.wire import (
    DLedgerRequest,
    WireMessage,
    answer_of,
    decode,
    request_body,
)
from rmqstore_spark.consensus.messages import Answer, MemberCode, Request
from rmqstore_spark.errors import FrameError, ServiceError
from rmqstore_spark.remoting.backlog import Limits
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.peerlog import PeerLog

ANSWER_SECONDS: Final = 3.0
"""How long DLedger waits for an answer."""
FRAME: Final = 8 << 20
"""Most bytes of a frame: an entry of 4 MiB as base64, and its header."""


class PeerAnswers(Protocol):
    """Takes what comes back."""

    def answered(self, number: int, answer: Answer) -> None:
        """Take the answer to a request."""

    def unanswered(self, number: int) -> None:
        """Take note that there is no answer, and will be none."""


class Peers:
    """The connections to the other members. Use it in a running event loop.

    Args:
        group: who they are.
        answers: takes what they answer.
    """

    def __init__(self, group: MemberGroup, answers: PeerAnswers) -> None:
        self._group = group
        self._answers = answers
        self._clients: dict[str, RemotingClient] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = PeerLog(logging.getLogger(__name__))

    def ask(self, peer: str, number: int, request: Request) -> None:
        """Send a request of the member; its answer comes with this number."""
        code, body = request_body(request, self._group.name, self._group.me, peer)
        task = asyncio.ensure_future(self._ask(peer, number, request, code, body))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def send(self, peer: str, code: DLedgerRequest, body: bytes) -> bytes:
        """Send a request, and return the body of its answer.

        Raises:
            ServiceError: there is none.
        """
        client = self._clients.get(peer)
        if client is None:
            address = self._group.addresses[peer]
            client = self._clients[peer] = RemotingClient(address, limits=Limits(frame=FRAME))
        try:
            answer = await client.ask(Command(code, body=body), ANSWER_SECONDS)
        except ServiceError:
            if self._clients.get(peer) is client and not client.is_open:
                del self._clients[peer]  # a new one tries at once
                client.close()
            raise
        if answer.code != MemberCode.SUCCESS:
            raise ServiceError(f"it answers code {answer.code}.")
        return answer.body

    async def close(self) -> None:
        """End all connections."""
        for task in list(self._tasks):
            task.cancel()
        for client in self._clients.values():
            await client.end()

    async def _ask(
        self, peer: str, number: int, request: Request, code: DLedgerRequest, body: bytes
    ) -> None:
        answer = None
        try:
            body = await self.send(peer, code, body)
            answer = answer_of(request, body)
            if answer is None:
                refused = decode(WireMessage, body).code
                self._log.warning(peer, "%s of %s: refused, code %d.", code.name, peer, refused)
        except (ServiceError, FrameError) as error:
            self._log.warning(peer, "%s of %s: %s", code.name, peer, error)
        if answer is None:
            self._answers.unanswered(number)
        else:
            self._answers.answered(number, answer)
