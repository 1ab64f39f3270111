"""Find the stores of a query through name servers.

A store process announces its endpoint in its registration (`broker.faces`), and is then read as
with option `endpoint`. From any other broker, messages are pulled.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Final

from rmqstore_spark.datasource.failures import some
from rmqstore_spark.datasource.options.connection import ConnectionOptions
from rmqstore_spark.datasource.sources.broker import BrokerSpec
from rmqstore_spark.datasource.sources.store import EndpointSpec
from rmqstore_spark.errors import OptionError, TopicNotFoundError

if TYPE_CHECKING:
    from rmqstore_spark.client.brokers.answers import BrokerPlace
    from rmqstore_spark.client.brokers.routes import NameServers
    from rmqstore_spark.datasource.options.parsing import Options
    from rmqstore_spark.datasource.options.table import QueueOptions

_log = logging.getLogger("rmqstore_spark")

_AT_ONCE: Final = 256
"""Routes that are asked for together, as long as they only show of which kind a broker is."""


def routed(options: Options) -> list[tuple[EndpointSpec, ...] | BrokerSpec]:
    """Return the stores of a query by broker name, each with its replicas.

    Raises:
        TopicNotFoundError: no broker has one of the topics.
        OptionError: no broker is registered, or one cannot do what the options ask for.
        ServiceError: no name server answers.
    """
    connection = options.places.connection
    assert connection is not None  # noqa: S101  # as without `path`
    with connection.name_servers(options.places.name_servers) as servers:
        named = options.queues.named
        places = _of_all(options.queues, servers) if named is None else _of_topics(named, servers)
    if not places:
        raise OptionError(
            f"{servers.name} knows no broker with a topic. Check that brokers register there."
        )
    groups = [_group(options, connection, places[name]) for name in sorted(places)]
    pulled = [group.url for group in groups if isinstance(group, BrokerSpec)]
    announced = [one.url for group in groups if not isinstance(group, BrokerSpec) for one in group]
    connection.check_protected(pulled, announced)
    return groups


def _of_topics(topics: tuple[str, ...], servers: NameServers) -> dict[str, BrokerPlace]:
    """Return the brokers of some topics by name."""
    routes = servers.routes(topics)
    unknown = [topic for topic in topics if topic not in routes]
    if unknown:
        raise TopicNotFoundError(
            f"{servers.name} has no route for {some(unknown)}: no broker that runs has the topic."
        )
    return {place.name: place for route in routes.values() for place in route}


def _of_all(queues: QueueOptions, servers: NameServers) -> dict[str, BrokerPlace]:
    """Return all brokers by name: topics that the query matches can come to any of them.

    Only routes tell where a store process serves Spark. Any topic of a broker does. Those
    of RocketMQ have one of their own name; a broker without any topic is a store process.
    """
    names = [place.name for place in servers.brokers()]
    topics = servers.topics()
    wanted = [name for name in topics if queues.may_match(name)]
    found: dict[str, BrokerPlace] = {}
    for route in servers.routes(wanted).values():
        found.update((place.name, place) for place in route)
    others = iter([*names, *sorted(set(topics) - set(wanted))])
    while not found.keys() >= set(names) and (some_of := list(islice(others, _AT_ONCE))):
        for route in servers.routes(some_of).values():
            for place in route:
                found.setdefault(place.name, place)
    left = sorted(set(names) - found.keys())
    if left:
        _log.warning(
            "Left out %s: no topic of theirs is registered. Start the query again when they have "
            "topics.",
            some(left),
        )
    return found


def _group(
    options: Options, connection: ConnectionOptions, place: BrokerPlace
) -> tuple[EndpointSpec, ...] | BrokerSpec:
    """Return how to read one broker: through its endpoint, or by pulls."""
    from rmqstore_spark.client.brokers.routes import addresses_of

    first, *others = place.addresses.values()
    if first in place.endpoints:
        # Those that follow a store process as slaves can stand in for it.
        endpoints = [place.endpoints[one] for one in (first, *others) if one in place.endpoints]
        return tuple(
            EndpointSpec(one, place.name, options=connection.storage_options)
            for one in dict.fromkeys(endpoints)
        )
    _check_pulled(options, place)
    timeout_s = connection.timeout_ms / 1000
    return BrokerSpec(
        place.name,
        addresses_of(place),
        options.places.name_servers,
        timeout_s,
        min(timeout_s, options.places.replica_timeout_ms / 1000) if others else timeout_s,
        connection.identity,
        connect_s=connection.connect_s,
        retries=connection.retries,
    )


def _check_pulled(options: Options, place: BrokerPlace) -> None:
    """Refuse what needs the files of a store."""
    who = f"the broker {place.name} ({place.addresses[min(place.addresses)]})"
    remedy = "Read the broker's store directory (path), or through rmqstore serve (endpoint)."
    if options.rows.keys is not None:
        raise OptionError(
            f"Option keys needs the index files of a store, and messages of {who} are pulled over "
            f"the network. {remedy}"
        )
    if options.partitions.plan_by == "commitlog":
        raise OptionError(
            f"Option planBy=commitlog needs the log of a store, and messages of {who} are pulled "
            f"over the network, queue by queue. Remove planBy. {remedy}"
        )
