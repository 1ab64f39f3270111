"""Reads what name servers and brokers answer. Nothing of it is taken on trust."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.errors import FrameError, RemotingError, ServiceError
from rmqstore_spark.layout.constants import MASTER_ID
from rmqstore_spark.remoting.addresses import parse_address
from rmqstore_spark.remoting.codec.bodies import parse_body
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.fields import MAX_NAME, Fields
from rmqstore_spark.wire.endpoint import endpoint_announced

MAX_LONG: Final = (1 << 63) - 1
_ID: Final = re.compile("-?[0-9]{1,19}")
_MOST_IDS: Final = 64
"""Most addresses of one broker name."""
_MOST_QUEUES: Final = 65_536
_MOST_TOPICS: Final = 200_000
"""Most topics of a broker, or of a name server."""
_MOST_BROKERS: Final = 10_000
"""Most brokers of a route, or of a name server."""
_MOST_OF_ALL: Final = 1_000_000
"""Most queues of all topics of a broker, or of all brokers of a topic."""
_SHOWN: Final = 300
_ACCOUNT: Final = "acl.common.AclException"
"""In what RocketMQ 4 says when an account is missing, unknown or has no right."""
_USER: Final = re.compile(
    "username cannot be null|check signature failed|has no permission to access"
    "|^User:.* (is not found|not found|is disabled)"
)
"""In what RocketMQ 5 says of a user (upstream: DefaultAuthenticationHandler,
UserAuthorizationHandler, AclAuthorizationHandler)."""
_WRITABLE: Final = 2


class BrokerPlace(NamedTuple):
    """Where the processes of one broker name are.

    Attributes:
        name: the broker name.
        addresses: `host:port` by brokerId, ascending; 0 is the master.
        endpoints: where those that are store processes serve Spark, by address.
    """

    name: str
    addresses: dict[int, str]
    endpoints: dict[str, str]


class WritePlace(NamedTuple):
    """A broker that takes messages of a topic.

    Attributes:
        name: the broker name.
        address: of its master, `host:port`.
        endpoint: where the master serves Spark, if it is a store process; "" otherwise.
        queues: it takes messages in queues 0 to `queues - 1`.
    """

    name: str
    address: str
    endpoint: str
    queues: int


class BrokerTopic(NamedTuple):
    """A topic of a broker, as it is configured.

    Attributes:
        perm: 4 readable + 2 writable.
    """

    read_queues: int
    write_queues: int
    perm: int
    is_ordered: bool


class Pulled(NamedTuple):
    """The answer to a pull.

    Attributes:
        code: of the answer.
        status: the broker's word for it (GetMessageStatus); "" if it says none.
        next: the offset to pull from next.
        data: records, one after the other.
        void: how many void entries it has passed over.
    """

    code: int
    status: str
    next: int
    data: bytes
    void: int = 0


def refusal(answer: Command, who: str) -> RemotingError:
    """Return the error for an answer that refuses a request."""
    lines = (answer.remark or "the request is refused").splitlines() or [""]
    told = f"{who}: {escaped(lines[0][:_SHOWN])}"
    if refuses_account(answer):
        told = f"{told.rstrip('.')}. Set option aclFile to the file of an account that may do this"
    return RemotingError(answer.code, told)


def refuses_account(answer: Command) -> bool:
    """Return whether a broker with accounts or users does not let a request pass."""
    remark = answer.remark or ""
    if answer.code == ResponseCode.NO_PERMISSION:
        return _USER.search(remark) is not None
    return answer.code == ResponseCode.SYSTEM_ERROR and _ACCOUNT in remark


def nonsense(who: str, why: object) -> ServiceError:
    """Return the error for an answer that makes no sense."""
    return ServiceError(f"{who} sent an invalid answer: {why}.")


def read_offset(answer: Command, who: str) -> int:
    """Return the offset of an answer.

    Raises:
        RemotingError: it is a refusal.
        ServiceError: there is none in it.
    """
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer, who)
    return _long(answer, "offset", -1, who)


def _long(answer: Command, field: str, least: int, who: str) -> int:
    try:
        return Fields(answer.ext).long(field, least, MAX_LONG)
    except RemotingError as error:
        raise nonsense(who, error.remark) from None


def read_pulled(answer: Command, who: str) -> Pulled:
    """Read the answer to a pull.

    Raises:
        RemotingError: it is a refusal.
        ServiceError: its offsets make no sense.
    """
    if answer.code not in (
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    ):
        raise refusal(answer, who)
    after = _long(answer, "nextBeginOffset", 0, who)
    data = answer.body if answer.code == ResponseCode.SUCCESS else b""
    void = _long(answer, "voidEntries", 0, who) if "voidEntries" in answer.ext else 0
    return Pulled(answer.code, answer.remark or "", after, data, void)


def read_route(answer: Command, who: str) -> list[BrokerPlace] | None:
    """Read the route of a topic (TopicRouteData); None if the name server has none.

    Raises:
        RemotingError: the answer is another refusal.
        ServiceError: it is not a route.
    """
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    told = _object(_body(answer, who), "the route", who)
    servers = _object(told.get("filterServerTable") or {}, "filterServerTable", who)
    return _places(_list(told.get("brokerDatas") or [], "brokerDatas", who), servers, who)


def read_write_places(answer: Command, who: str) -> list[WritePlace] | None:
    """Read which brokers of a route take messages; None if the name server has no route.

    Raises:
        RemotingError: the answer is another refusal.
        ServiceError: it is not a route.
    """
    places = read_route(answer, who)
    if places is None:
        return None
    queues: dict[str, int] = {}
    told = _object(_body(answer, who), "the route", who)
    for given in _list(told.get("queueDatas") or [], "queueDatas", who):
        data = _object(given, "the queues of a broker", who)
        count = _count(data.get("writeQueueNums", 0), who)
        is_writable = _count(data.get("perm", 6), who) & _WRITABLE
        queues[_name(data.get("brokerName"), who)] = count if is_writable else 0
    found = []
    for place in places:
        address = place.addresses.get(MASTER_ID)
        count = queues.get(place.name, 0)
        if address is not None and count:
            endpoint = place.endpoints.get(address, "")
            found.append(WritePlace(place.name, address, endpoint, count))
    _check_sum((place.queues for place in found), who)
    return found


def read_brokers(answer: Command, who: str) -> list[BrokerPlace]:
    """Read the brokers of all clusters (ClusterInfo), without their endpoints.

    Raises:
        RemotingError: the answer is a refusal.
        ServiceError: it is not a list of brokers.
    """
    told = _object(_body(answer, who), "the answer", who)
    table = _object(told.get("brokerAddrTable") or {}, "brokerAddrTable", who)
    return _places(list(table.values()), {}, who)


def _places(given: list[Any], servers: dict[str, Any], who: str) -> list[BrokerPlace]:
    """Read brokers; one without an address has no process now, and is left out."""
    if len(given) > _MOST_BROKERS:
        raise nonsense(who, f"it names {len(given)} brokers; the most are {_MOST_BROKERS}")
    places = (_place(_object(data, "a broker", who), servers, who) for data in given)
    return [place for place in places if place.addresses]


def _place(data: dict[str, Any], servers: dict[str, Any], who: str) -> BrokerPlace:
    name = _name(data.get("brokerName"), who)
    table = _object(data.get("brokerAddrs") or {}, "brokerAddrs", who)
    if len(table) > _MOST_IDS:
        raise nonsense(who, f"{name} has {len(table)} addresses")
    addresses = {}
    for number, address in table.items():
        if not _ID.fullmatch(number):
            raise nonsense(who, f"a brokerId of {name} is not a number")
        if not number.startswith("-"):  # it has no role yet
            addresses[int(number)] = _address(address, who)
    endpoints = {}
    for address in addresses.values():
        texts = _list(servers.get(address) or [], "the filter servers of a broker", who)
        endpoint = endpoint_announced(text for text in texts if isinstance(text, str))
        if endpoint:
            endpoints[address] = endpoint
    return BrokerPlace(name, dict(sorted(addresses.items())), endpoints)


def _address(given: object, who: str) -> str:
    address = _name(given, who)
    try:
        parse_address(address)
    except ServiceError as error:
        raise nonsense(who, str(error).rstrip(".")) from None
    return address


def read_names(answer: Command, who: str) -> list[str]:
    """Read a list of topics (TopicList).

    Raises:
        RemotingError: the answer is a refusal.
        ServiceError: it is not a list of topics.
    """
    told = _object(_body(answer, who), "the answer", who)
    given = _list(told.get("topicList") or [], "topicList", who)
    _check_topics(len(given), who)
    return [_name(one, who) for one in given]


def read_topics(answer: Command, who: str) -> dict[str, BrokerTopic]:
    """Read the topics of a broker (TopicConfigSerializeWrapper).

    Raises:
        RemotingError: the answer is a refusal.
        ServiceError: it is not a table of topics.
    """
    told = _object(_body(answer, who), "the answer", who)
    table = _object(told.get("topicConfigTable") or {}, "topicConfigTable", who)
    _check_topics(len(table), who)
    found = {}
    for name, given in table.items():
        config = _object(given, "a topic", who)
        found[_name(name, who)] = BrokerTopic(
            _count(config.get("readQueueNums", 16), who),
            _count(config.get("writeQueueNums", 16), who),
            _count(config.get("perm", 6), who),
            config.get("order") is True,
        )
    _check_sum((topic.read_queues for topic in found.values()), who)
    return found


def read_groups(answer: Command, who: str) -> frozenset[str]:
    """Read the names of a broker's consumer groups (SubscriptionGroupWrapper).

    Raises:
        RemotingError: the answer is a refusal.
        ServiceError: it is not a table of groups.
    """
    told = _object(_body(answer, who), "the answer", who)
    return frozenset(
        _object(told.get("subscriptionGroupTable") or {}, "subscriptionGroupTable", who)
    )


def _body(answer: Command, who: str) -> Any:
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer, who)
    try:
        return parse_body(answer.body)
    except FrameError as error:
        raise nonsense(who, error) from None


def _object(given: Any, what: str, who: str) -> dict[str, Any]:
    if not isinstance(given, dict) or not all(isinstance(key, str) for key in given):
        raise nonsense(who, f"{what} is not a JSON object")
    return given


def _list(given: Any, what: str, who: str) -> list[Any]:
    if not isinstance(given, list):
        raise nonsense(who, f"{what} is not a JSON list")
    return given


def _name(given: Any, who: str) -> str:
    if not isinstance(given, str) or not 0 < len(given) <= 2 * MAX_NAME or not given.isprintable():
        raise nonsense(who, "a name in it is not a text of printable characters")
    return given


def _check_topics(count: int, who: str) -> None:
    if count > _MOST_TOPICS:
        raise nonsense(who, f"it names {count} topics; the most are {_MOST_TOPICS}")


def _check_sum(queues: Iterable[int], who: str) -> None:
    total = sum(queues)
    if total > _MOST_OF_ALL:
        raise nonsense(who, f"it names {total} queues; the most are {_MOST_OF_ALL}")


def _count(given: Any, who: str) -> int:
    if type(given) is not int or not 0 <= given <= _MOST_QUEUES:
        raise nonsense(who, f"a number of queues is not 0 to {_MOST_QUEUES}")
    return given
