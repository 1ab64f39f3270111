"""Find the stores of a query through name servers.

A store process announces its Arrow Flight endpoint in its registration (`broker.registering`), and
is then read as with option `endpoint`. From any other broker, messages are pulled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rmqstore_spark.datasource.failures import some
from rmqstore_spark.datasource.pulled.spec import BrokerSpec
from rmqstore_spark.datasource.spec import StoreSpec
from rmqstore_spark.errors import OptionError, TopicNotFoundError
from rmqstore_spark.layout.constants import is_system_topic

if TYPE_CHECKING:
    from rmqstore_spark.client.brokers.answers import BrokerPlace
    from rmqstore_spark.client.brokers.routes import NameServers
    from rmqstore_spark.datasource.options.parsing import Options

__all__ = ["routed"]

_MASTER: Final = 0


def routed(options: Options) -> list[tuple[StoreSpec, ...] | BrokerSpec]:
    """Return the stores of a query by broker name, each with its replicas.

    Raises:
        TopicNotFoundError: no broker has one of the topics.
        OptionError: no broker is registered, or one cannot do what the options ask for.
        ServiceError: no name server answers.
    """
    from rmqstore_spark.client.brokers.routes import NameServers

    timeout_s = options.connection.timeout_ms / 1000 if options.connection else 0.0
    with NameServers(options.name_servers, timeout_s) as servers:
        named = options.topics if options.assign is None else tuple(options.assign)
        places = _of_all(options, servers) if named is None else _of_topics(named, servers)
    if not places:
        raise OptionError(f"{servers.name} knows no broker. Check that brokers register there.")
    return [_group(options, places[name], timeout_s) for name in sorted(places)]


def _of_topics(topics: tuple[str, ...], servers: NameServers) -> dict[str, BrokerPlace]:
    """Return the brokers of some topics by name."""
    routes = servers.routes(topics)
    unknown = [topic for topic in topics if topic not in routes]
    if unknown:
        raise TopicNotFoundError(
            f"{servers.name} has no route for {some(unknown)}: no broker that runs has the topic."
        )
    return {place.name: place for route in routes.values() for place in route}


def _of_all(options: Options, servers: NameServers) -> dict[str, BrokerPlace]:
    """Return all brokers by name: topics that the query matches can come to any of them.

    Only routes tell where a store process serves Arrow Flight. Any topic of a broker does.
    """
    found = {place.name: place for place in servers.brokers()}
    wanted = [name for name in servers.topics() if _may_want(options, name)]
    for route in servers.routes(wanted).values():
        found.update((place.name, place) for place in route)
    return found


def _may_want(options: Options, topic: str) -> bool:
    if is_system_topic(topic) and not options.include_system:
        return False
    return options.pattern is None or options.pattern.fullmatch(topic) is not None


def _group(
    options: Options, place: BrokerPlace, timeout_s: float
) -> tuple[StoreSpec, ...] | BrokerSpec:
    """Return how to read one broker: through its endpoint, or by pulls."""
    first, *others = place.addresses.values()
    connection = options.connection
    if first in place.endpoints and connection is not None:
        # Those that follow a store process as slaves can stand in for it.
        endpoints = [place.endpoints[one] for one in (first, *others) if one in place.endpoints]
        return tuple(
            StoreSpec(one, place.name, options=connection.storage_options)
            for one in dict.fromkeys(endpoints)
        )
    _check_pulled(options, place)
    answer_s = min(timeout_s, options.replica_timeout_ms / 1000) if others else timeout_s
    has_master = _MASTER in place.addresses
    return BrokerSpec(place.name, (first, *others), has_master, timeout_s, answer_s)


def _check_pulled(options: Options, place: BrokerPlace) -> None:
    """Refuse what needs the files of a store."""
    who = f"the broker {place.name} ({place.addresses[min(place.addresses)]})"
    remedy = "Read the broker's store directory (path), or through rmqstore serve (endpoint)."
    if options.keys is not None:
        raise OptionError(
            f"Option keys needs the index files of a store, and messages of {who} are pulled over "
            f"the network. {remedy}"
        )
    if options.plan_by == "commitlog":
        raise OptionError(
            f"Option planBy=commitlog needs the log of a store, and messages of {who} are pulled "
            f"over the network, queue by queue. Remove planBy. {remedy}"
        )
