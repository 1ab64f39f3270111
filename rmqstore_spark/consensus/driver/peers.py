"""Asks the other members, over a connection to each."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, Protocol

from rmqstore_spark.base.printable import escaped, shortened
from rmqstore_spark.consensus.driver.checks import why_no_term
from rmqstore_spark.consensus.driver.group import MemberGroup
from rmqstore_spark.consensus.driver.protection import MemberProtection, request_to
from rmqstore_spark.consensus.driver.wire import (
    MOST_TOLD,
    DLedgerRequest,
    WireMessage,
    answer_of,
    code_words,
    decode,
    encoded_entries,
    request_body,
)
from rmqstore_spark.consensus.messages import Answer, LedgerEntry, MemberCode, Push, Request
from rmqstore_spark.errors import FrameError, ServiceError
from rmqstore_spark.remoting.backlog import Limits, UnheardError
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.command import Command
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

_PLAIN_ADVICE: Final = "Then dLegerTlsEnable=true is needed here."


class _NotAllowedError(ServiceError):
    """A member may not be asked with the configuration of the two. The text says what to do."""


class PeerAnswers(Protocol):
    """Takes what comes back."""

    def answered(self, number: int, answer: Answer) -> None:
        """Take the answer to a request."""

    def unanswered(self, number: int) -> None:
        """Take note that there is no answer, and will be none."""


class _Asked(NamedTuple):
    """A request that was sent, or is on its way."""

    peer: str
    number: int
    request: Request
    code: DLedgerRequest


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
        self._tasks: dict[str, set[asyncio.Task[None]]] = {peer: set() for peer in group.ids}
        self._is_closed = False
        self._log = PeerLog(logging.getLogger(__name__))
        self._entries: tuple[LedgerEntry, ...] = ()  # of the last push
        self._encoded_entries = encoded_entries(())

    def ask(self, peer: str, number: int, request: Request) -> None:
        """Send a request of the member; its answer comes with this number."""
        entries = request.entries if isinstance(request, Push) else ()
        if entries is not self._entries:  # the same ones go to one peer after the other
            self._entries, self._encoded_entries = entries, encoded_entries(entries)
        code, body = request_body(
            request, self._group.name, self._group.me, peer, self._encoded_entries
        )
        asked = _Asked(peer, number, request, code)
        if not self._ask_now(asked, body):
            task = asyncio.ensure_future(self._ask(asked, body))
            self._tasks[peer].add(task)
            task.add_done_callback(self._tasks[peer].discard)

    def _ask_now(self, asked: _Asked, body: bytes) -> bool:
        """Send a request if it has to wait for nothing; return whether it is sent."""
        client = self._clients.get(asked.peer)
        if client is None or self._tasks[asked.peer]:  # those that wait come first
            return False
        with suppress(ServiceError, FrameError):  # a task says why
            told = partial(self._arrived, asked, client)
            return client.ask_now(request_to(asked.code, body), ANSWER_SECONDS, told)
        return False

    async def send(self, peer: str, code: DLedgerRequest, body: bytes) -> bytes:
        """Send a request, and return the body of its answer.

        Raises:
            ServiceError: there is none.
        """
        if self._is_closed:
            raise ServiceError("This member ends.")
        client = self._clients.get(peer)
        if client is None:
            client = self._clients[peer] = self._client(self._group.addresses[peer])
        try:
            answer = await client.ask(request_to(code, body), ANSWER_SECONDS)
        except ServiceError as error:
            self._forget_closed(peer, client)
            if isinstance(error.__cause__, OSError):  # of TLS
                raise _NotAllowedError(f"{error} {_TLS_ADVICE}") from error
            if isinstance(error, UnheardError):
                raise UnheardError(f"{error} {_PLAIN_ADVICE}") from None
            raise
        return _body_of(answer)

    async def send_to(self, address: str, code: DLedgerRequest, body: bytes) -> bytes:
        """Send a request to an address that another member has told, on a connection of its own.

        Raises:
            ServiceError: there is no answer.
        """
        client = self._client(address)
        try:
            return _body_of(await client.ask(request_to(code, body), ANSWER_SECONDS))
        finally:
            await client.end()

    def _client(self, address: str) -> RemotingClient:
        identity = self._identity
        return RemotingClient(
            address, limits=Limits(frame=FRAME), tls=identity.tls, credentials=identity.credentials
        )

    async def close(self) -> None:
        """End all connections."""
        self._is_closed = True
        tasks = [task for of_peer in self._tasks.values() for task in of_peer]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in list(self._clients.values()):
            await client.end()

    async def _ask(self, asked: _Asked, body: bytes) -> None:
        found: bytes | ServiceError | FrameError
        try:
            found = await self.send(asked.peer, asked.code, body)
        except (ServiceError, FrameError) as error:
            found = error
        self._settle(asked, found)

    def _arrived(
        self, asked: _Asked, client: RemotingClient, answer: Command | ServiceError
    ) -> None:
        if self._is_closed:
            return
        found: bytes | ServiceError
        try:
            found = answer if isinstance(answer, ServiceError) else _body_of(answer)
        except _NotAllowedError as error:
            found = error
        if isinstance(found, ServiceError):
            self._forget_closed(asked.peer, client)
        if isinstance(found, UnheardError):
            found = UnheardError(f"{found} {_PLAIN_ADVICE}")
        self._settle(asked, found)

    def _forget_closed(self, peer: str, client: RemotingClient) -> None:
        """Forget a client whose connection was closed: a new one tries at once."""
        if self._clients.get(peer) is client and not client.is_open:
            del self._clients[peer]
            client.close()

    def _settle(self, asked: _Asked, found: bytes | ServiceError | FrameError) -> None:
        """Give the member the answer to a request, and log why there is none."""
        name, peer, answer = asked.code.name, asked.peer, None
        at = f"{peer}:"
        if isinstance(found, bytes):
            try:
                answer = answer_of(asked.request, found)
                why_not = answer and why_no_term(answer.term)
                if why_not:
                    self._log.warning(at, "%s of %s: %s.", name, peer, why_not)
                    answer = None
                elif answer is None:
                    refused = code_words(decode(WireMessage, found).code)
                    self._log.warning(at, "%s of %s: refused, code %s.", name, peer, refused)
            except FrameError as error:
                found = error
        if isinstance(found, _NotAllowedError):
            self._log.warning(at, "%s of %s is not allowed: %s", name, peer, found)
        elif isinstance(found, UnheardError):  # logged beside one that could not be reached yet
            self._log.warning(at, "%s of %s was not heard: %s", name, peer, found)
        elif isinstance(found, Exception):
            self._log.warning(at, "%s of %s: %s", name, peer, found)
        if answer is None:
            self._answers.unanswered(asked.number)
        else:
            self._answers.answered(asked.number, answer)


def _body_of(answer: Command) -> bytes:
    if answer.code != MemberCode.SUCCESS:
        remark = escaped(shortened(answer.remark or "without saying why", MOST_TOLD))
        raise _NotAllowedError(f"it answers code {answer.code}, {remark}. {_ADVICE}")
    return answer.body
