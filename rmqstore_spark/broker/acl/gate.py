"""Lets through what an account may ask (upstream: PlainPermissionManager.validate).

The answers begin as RocketMQ's do; they name the access key and what it lacks, never a secret.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.broker.acl.accounts import Account, AccountSource, Need, Right, need_of_topic
from rmqstore_spark.engine.queue_reader import QueueReader
from rmqstore_spark.errors import FrameError, RemotingError
from rmqstore_spark.layout.constants import PROPERTY_REAL_TOPIC, SCHEDULE_TOPIC, TRANS_HALF_TOPIC
from rmqstore_spark.layout.record.format import Records
from rmqstore_spark.layout.record.properties import find_properties
from rmqstore_spark.layout.spans import Spans
from rmqstore_spark.remoting.access.signing import ACCESS_KEY, SIGNATURE
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.fields import MAX_LONG, MAX_NAME, Fields
from rmqstore_spark.remoting.connection import RemotingConnection, Request
from rmqstore_spark.remoting.peerlog import PeerLog

__all__ = ["AccountGate", "Gate", "OpenGate", "SlavesGate"]

_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
_OF_SLAVES: Final = frozenset(
    {
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    }
)
_LEAD: Final = "org.apache.rocketmq.acl.common.AclException: "


class RequestRights(Protocol):
    """What an account needs for requests with a code."""

    @property
    def read(self) -> Callable[[Command], Iterable[Need]]:
        """Returns what a request needs, but for what only the message that it names can tell."""

    @property
    def place(self) -> tuple[str, Right] | None:
        """For requests that name a message by its physical offset: the field, and the right.

        They need this right for the topic of that message.
        """


class Gate(Protocol):
    """Stands before the handlers of requests."""

    def admitted(self, requests: Sequence[Request]) -> Sequence[Request]:
        """Return the requests that handlers may see; finish the others."""

    def check_place(self, request: Command, peer: str, reader: QueueReader) -> None:
        """Look at the message that an admitted request names by its place, if it names one.

        Args:
            request: the request.
            peer: address of the other end.
            reader: of the store's records; it belongs to this thread.

        Raises:
            RemotingError: the account may not do that with a message of this topic, or there is
                none that could tell.
        """

    def may_learn(self, connection: RemotingConnection, topic: str) -> bool:
        """Return whether a producer may be shown a message that was sent to a topic."""


class OpenGate:
    """Lets everything through."""

    def admitted(self, requests: Sequence[Request]) -> Sequence[Request]:
        return requests

    def check_place(self, request: Command, peer: str, reader: QueueReader) -> None:
        """Do nothing."""

    def may_learn(self, connection: RemotingConnection, topic: str) -> bool:  # noqa: ARG002 - as above
        return True


class SlavesGate:
    """Lets through what slaves ask: the store has no other clients of RocketMQ.

    Args:
        gate: lets through some of these requests.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def admitted(self, requests: Sequence[Request]) -> Sequence[Request]:
        found = []
        for request in requests:
            command = request.command
            if command.code in _OF_SLAVES:
                found.append(request)
                continue
            remark = (
                f" request type {command.code} not supported: this store process serves no clients "
                "of RocketMQ, as clients=spark says"
            )
            request.reply(command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
        return self._gate.admitted(found)

    def check_place(self, request: Command, peer: str, reader: QueueReader) -> None:
        self._gate.check_place(request, peer, reader)

    def may_learn(self, connection: RemotingConnection, topic: str) -> bool:
        return self._gate.may_learn(connection, topic)


class AccountGate:
    """Lets through what accounts may ask.

    Args:
        source: has the accounts.
        rights: what requests need, by their code. Other codes are for administrators.
    """

    def __init__(self, source: AccountSource, rights: Mapping[int, RequestRights]) -> None:
        self._source = source
        self._rights = rights
        self._keys: WeakKeyDictionary[RemotingConnection, str] = WeakKeyDictionary()
        self._log = PeerLog(logging.getLogger(__name__))

    def admitted(self, requests: Sequence[Request]) -> Sequence[Request]:
        found = []
        for request in requests:
            command, peer = request.command, request.connection.peer
            try:
                self._check(command, peer)
                found.append(request)
                if command.code == RequestCode.HEART_BEAT:
                    self._keys[request.connection] = command.ext.get(ACCESS_KEY, "")
            except RemotingError as error:
                request.reply(command.answer(error.code, error.remark))
            except FrameError as error:
                request.reply(command.answer(ResponseCode.SYSTEM_ERROR, str(error)))
            except Exception as error:  # noqa: BLE001 - what cannot be checked is refused
                remark = "the request could not be checked because of an error in the broker"
                request.reply(command.answer(ResponseCode.SYSTEM_ERROR, remark))
                self._log.log(
                    logging.ERROR, peer, "Request %d of %s could not be checked.", command.code,
                    escaped(peer), error=error,
                )  # fmt: skip
        return found

    def check_place(self, request: Command, peer: str, reader: QueueReader) -> None:
        rights = self._rights.get(request.code)
        if rights is None or rights.place is None:
            return
        field, right = rights.place
        account = self._account(request, peer)
        if account is None:
            return
        place = Fields(request.ext).long(field, -MAX_LONG, MAX_LONG)
        if place < 0:
            return
        record = reader.record(place)
        if record is not None:
            self._require(account, need_of_topic(_topic_of(record), right), peer)
        elif place >= reader.begin:  # one may come there before the handler looks
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR, f"there is no message at the offset {place}"
            )

    def may_learn(self, connection: RemotingConnection, topic: str) -> bool:
        accounts, host = self._source.accounts, _host(connection.peer)
        if accounts.white.holds(host):
            return True
        account = accounts.by_key.get(self._keys.get(connection, ""))
        if account is None:
            return False
        return account.white.holds(host) or account.may(need_of_topic(topic, Right.PUB))

    def _check(self, request: Command, peer: str) -> None:
        account = self._account(request, peer)
        if account is None:
            return
        if not _is_signed(request, account):
            raise self._refusal(peer, f"Check signature failed for accessKey={account.access_key}")
        rights = self._rights.get(request.code)
        if rights is None and not account.is_admin:
            raise self._refusal(
                peer, f"Need admin permission for request code={request.code}, but "
                f"accessKey={account.access_key} is not",
            )  # fmt: skip
        for need in () if rights is None else tuple(rights.read(request)):
            self._require(account, need, peer)

    def _account(self, request: Command, peer: str) -> Account | None:
        """Return the account of a request; None for an address that needs none."""
        accounts, host = self._source.accounts, _host(peer)
        if accounts.white.holds(host):
            return None
        given = request.ext.get(ACCESS_KEY)
        if given is None:
            raise self._refusal(peer, "No accessKey is configured")
        account = accounts.by_key.get(given)
        if account is None:
            raise self._refusal(peer, f"No acl config for {escaped(given[:MAX_NAME])}")
        return None if account.white.holds(host) else account

    def _require(self, account: Account, need: Need, peer: str) -> None:
        if not account.may(need):
            raise self._refusal(
                peer, f"No default permission for {escaped(str(need)[:MAX_NAME])}, "
                f"accessKey={account.access_key} needs {need.right.words}",
            )  # fmt: skip

    def _refusal(self, peer: str, what: str) -> RemotingError:
        self._log.warning(peer, "%s was refused: %s.", escaped(peer), what)
        return RemotingError(ResponseCode.SYSTEM_ERROR, _LEAD + what)


def _is_signed(request: Command, account: Account) -> bool:
    if account.secret.has_signed(request):
        return True
    # RocketMQ's broker leaves this field out, but its clients sign it.
    is_query = request.code == RequestCode.QUERY_MESSAGE and _UNIQUE_KEY_QUERY in request.ext
    return is_query and account.secret.has_signed(request, (SIGNATURE, _UNIQUE_KEY_QUERY))


def _host(peer: str) -> str:
    return peer.rpartition(":")[0].removeprefix("[").removesuffix("]")


def _topic_of(record: Records) -> str:
    """Return the topic for which a message was sent; that of a half or delayed one waits."""
    topic = _text(record.topic)
    if topic in (SCHEDULE_TOPIC, TRANS_HALF_TOPIC):
        found = find_properties(record.properties, (PROPERTY_REAL_TOPIC,))[PROPERTY_REAL_TOPIC]
        return _text(found) if found.lengths[0] >= 0 else topic
    return topic


def _text(spans: Spans) -> str:
    at, length = int(spans.starts[0]), int(spans.lengths[0])
    return spans.buffer[at : at + length].tobytes().decode("utf-8", "replace")
