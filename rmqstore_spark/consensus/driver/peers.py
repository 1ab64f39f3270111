"""Asks the other members, over a connection to each."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.consensus.driver.group import MemberGroup
from rmqstore_spark.consensus.driver.protection import MemberProtection, request_to
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
from rmqstore_spark.remoting.peerlog import PeerLog

ANSWER_SECONDS: Final = 3.0
"""How long DLedger waits for an answer."""
FRAME: Final = 8 << 20
"""Most bytes of a frame: an entry of 4 MiB as base64, and its header."""
_ADVICE: Final = (
    "If it needs accounts (dLegerAclEnable), aclCredentialsPath here must have one of its aclPath, "
    "with admin: true."
)
_TLS_ADVICE: Final = (
    "With dLegerTlsEnable here, it must have tlsServerCertPath, a certificate that names its host "
    "in dLegerPeers, and tlsClientTrustCertPath here must verify that."
)


class _NotAllowedError(ServiceError):
    """A member may not be asked with the configuration of the two. The text says what to do."""


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
        protection: of this member.
    """

    def __init__(
        self, group: MemberGroup, answers: PeerAnswers, protection: MemberProtection
    ) -> None:
        self._group = group
        self._identity = protection.identity
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
            identity = self._identity
            client = self._clients[peer] = RemotingClient(
                self._group.addresses[peer], limits=Limits(frame=FRAME), tls=identity.tls,
                credentials=identity.credentials,
            )  # fmt: skip
        try:
            answer = await client.ask(request_to(code, body), ANSWER_SECONDS)
        except ServiceError as error:
            if self._clients.get(peer) is client and not client.is_open:
                del self._clients[peer]  # a new one tries at once
                client.close()
            if isinstance(error.__cause__, OSError):  # of TLS
                raise _NotAllowedError(f"{error} {_TLS_ADVICE}") from error
            raise
        if answer.code != MemberCode.SUCCESS:
            remark = escaped(answer.remark or "without saying why")
            raise _NotAllowedError(f"it answers code {answer.code}, {remark}. {_ADVICE}")
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
        answer, at = None, f"{peer}:"
        try:
            body = await self.send(peer, code, body)
            answer = answer_of(request, body)
            if answer is None:
                refused = decode(WireMessage, body).code
                self._log.warning(at, "%s of %s: refused, code %d.", code.name, peer, refused)
        except _NotAllowedError as error:
            self._log.warning(at, "%s of %s is not allowed: %s", code.name, peer, error)
        except (ServiceError, FrameError) as error:
            self._log.warning(at, "%s of %s: %s", code.name, peer, error)
        if answer is None:
            self._answers.unanswered(number)
        else:
            self._answers.answered(number, answer)
