"""Asks name servers which brokers there are, and which of them have a topic."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from rmqstore_spark.client.brokers.answers import (
    BrokerPlace,
    WritePlace,
    read_brokers,
    read_names,
    read_route,
    read_write_places,
)
from rmqstore_spark.client.brokers.server_group import Addresses, ServerGroup
from rmqstore_spark.client.contact import CONNECT_SECONDS, was_reached
from rmqstore_spark.errors import RmqStoreError, ServiceError, TopicNotFoundError
from rmqstore_spark.layout.constants import AUTO_CREATE_TOPIC, MASTER_ID
from rmqstore_spark.remoting.access.identity import ClientIdentity
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command

_log = logging.getLogger("rmqstore_spark")

_ANSWER_SECONDS: Final = 5.0


class NameServers:
    """Some name servers. They know nothing of each other, and one that has just started knows few.

    So all of them are asked, and what any of them knows counts.

    Args:
        addresses: of each, as `host:port`.
        timeout_s: seconds after which none has answered.
        identity: as whom this side talks to them.
        connect_s: seconds after which those that have never answered are given up; None if another
            process of this program has reached them.
        retries: how often they are asked again; None for as often as time permits.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        timeout_s: float,
        identity: ClientIdentity,
        *,
        connect_s: float | None = CONNECT_SECONDS,
        retries: int | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._connect_s = connect_s
        self._retries = retries
        self._addresses = tuple(addresses)
        self._limit = timeout_s if len(addresses) == 1 else min(timeout_s, _ANSWER_SECONDS)
        self._failed: set[ServerGroup] = set()
        self._servers = [
            ServerGroup(
                Addresses((address,), has_master=False),
                "The name server",
                self._limit,
                _ANSWER_SECONDS,
                identity,
                connect_s=None if connect_s is None else connect_s / len(addresses),
                retries=retries,
            )
            for address in addresses
        ]
        self.name = f"The name server {' or '.join(addresses)}"

    def __enter__(self) -> NameServers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        for server in self._servers:
            server.close()

    def topics(self) -> list[str]:
        """Return the names of all topics.

        Raises:
            ServiceError: no name server answers.
        """
        asked = Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        known = (read_names(answer, self.name) for (answer,) in self._ask_all([asked]))
        return sorted(set().union(*known))

    def brokers(self) -> list[BrokerPlace]:
        """Return all brokers, without their endpoints.

        Raises:
            ServiceError: no name server answers.
        """
        asked = Command(RequestCode.GET_BROKER_CLUSTER_INFO)
        known = (read_brokers(answer, self.name) for (answer,) in self._ask_all([asked]))
        return joined(known)

    def routes(self, topics: Iterable[str]) -> dict[str, list[BrokerPlace]]:
        """Return the brokers of some topics, by topic; topics without a route are left out.

        Raises:
            ServiceError: no name server answers.
        """
        names = list(topics)
        asked = [_route_request(name) for name in names]
        by_server = [
            [read_route(answer, self.name) or [] for answer in answers]
            for answers in self._ask_all(asked)
        ]
        routes = (joined(of_topic) for of_topic in zip(*by_server, strict=True))
        return {name: route for name, route in zip(names, routes, strict=True) if route}

    def write_places(self, topic: str) -> list[WritePlace] | None:
        """Return the brokers that take messages of a topic, by name; None if it has no route.

        Raises:
            ServiceError: no name server answers.
        """
        answers = self._ask_all([_route_request(topic)])
        known = [read_write_places(answer, self.name) for (answer,) in answers]
        told = [places for places in known if places is not None]
        if not told:
            return None
        found = {place.name: place for places in reversed(told) for place in places}
        return [found[name] for name in sorted(found)]

    def _ask_all(self, commands: Sequence[Command]) -> list[list[Command]]:
        """Return the answers of each name server that answers.

        Raises:
            ServiceError: none does.
        """
        seconds = self._timeout_s
        if self._connect_s is not None and not any(map(was_reached, self._addresses)):
            seconds = min(seconds, self._connect_s)
        give_up = time.monotonic() + seconds
        tries = 0
        while True:
            found, failures = [], []
            for server in self._servers:
                if server in self._failed:
                    continue
                asked = [replace(command) for command in commands]
                try:
                    found.append([each.command for each in server.ask_all(asked)])
                except ServiceError as error:
                    failures.append(error)
                    self._failed.add(server)
            if found:
                for failure in failures:
                    _log.warning("%s Using the answers of the other name servers.", failure)
                return found
            self._failed.clear()
            if tries == self._retries or time.monotonic() + self._limit > give_up:
                raise ServiceError(" ".join(map(str, failures)), can_pass=True)
            tries += 1


class RegisteredBroker:
    """Where the processes of one broker name are registered (a `ServerFinder`).

    Args:
        name_servers: addresses, as `host:port`.
        broker_name: the broker name.
        identity: as whom this side talks to name servers.
        only_master: whether slaves are left out.
    """

    def __init__(
        self,
        name_servers: Sequence[str],
        broker_name: str,
        identity: ClientIdentity,
        *,
        only_master: bool,
    ) -> None:
        self._servers = NameServers(name_servers, _ANSWER_SECONDS, identity)
        self._broker_name = broker_name
        self._only_master = only_master
        self._is_told = False

    def find(self) -> Addresses | None:
        """Return where they are now; None if no name server knows, or none answers."""
        try:
            places = self._servers.brokers()
        except RmqStoreError as error:
            if not self._is_told:
                _log.warning("Could not look up the broker %s again: %s", self._broker_name, error)
            self._is_told = True
            return None
        self._is_told = False
        for place in places:
            if place.name == self._broker_name:
                found = addresses_of(place)
                if not self._only_master:
                    return found
                return Addresses(found.listed[:1], True) if found.has_master else None
        return None

    def close(self) -> None:
        """Close the connections to the name servers."""
        self._servers.close()


def addresses_of(place: BrokerPlace) -> Addresses:
    """Return the addresses of a broker, its master first."""
    return Addresses(tuple(place.addresses.values()), MASTER_ID in place.addresses)


def _route_request(topic: str) -> Command:
    fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
    return Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)


def joined(known: Iterable[Sequence[BrokerPlace]]) -> list[BrokerPlace]:
    """Return the brokers that any of several lists has, with all their addresses and endpoints."""
    found: dict[str, BrokerPlace] = {}
    for place in chain.from_iterable(known):
        before = found.setdefault(place.name, place)
        if before is not place:
            addresses = {**place.addresses, **before.addresses}
            found[place.name] = before._replace(
                addresses=dict(sorted(addresses.items())),
                endpoints={**place.endpoints, **before.endpoints},
            )
    return list(found.values())


DEFAULT_QUEUES: Final = 4
"""Most queues of such a topic on each broker (defaultTopicQueueNums of a producer)."""


def find_write_places(
    servers: NameServers, topic: str, wanted: Sequence[str] | None = None
) -> tuple[WritePlace, ...]:
    """Return the brokers that take messages of a topic, by name, even of one that is not there yet.

    Upstream: DefaultMQProducerImpl.tryToFindTopicPublishInfo.

    Args:
        servers: know the route.
        topic: its name.
        wanted: names of the brokers to use; None for all.

    Raises:
        TopicNotFoundError: there are none.
        ServiceError: no name server answers.
    """
    places = servers.write_places(topic)
    if places is None:
        created = servers.write_places(AUTO_CREATE_TOPIC) or []
        places = [place._replace(queues=min(place.queues, DEFAULT_QUEUES)) for place in created]
        if not places:
            raise TopicNotFoundError(
                f"{servers.name} has no route for {topic}, and knows no broker that creates topics "
                "by itself (autoCreateTopicEnable). Create the topic, for example with mqadmin "
                "updateTopic, or start the broker that has it."
            )
    found = [place for place in places if wanted is None or place.name in wanted]
    if not found:
        which = "No broker" if wanted is None else f"None of the brokers {', '.join(wanted)}"
        raise TopicNotFoundError(
            f"{which} takes messages of the topic {topic} now: there is no master, or the topic "
            f"has no write permission or no write queues. The routes are those of {servers.name}."
        )
    return tuple(found)


class PublishRoutes:
    """The brokers of topics, looked up when a topic is first used.

    Args:
        name_servers: addresses of the name servers.
        timeout_s: seconds after which none has answered.
        identity: as whom this side talks to them.
        brokers: names of the brokers to use; None for all.
        connect_s, retries: see `NameServers`.
    """

    def __init__(
        self,
        name_servers: Sequence[str],
        timeout_s: float,
        identity: ClientIdentity,
        brokers: Iterable[str] | None = None,
        *,
        connect_s: float | None = CONNECT_SECONDS,
        retries: int | None = None,
    ) -> None:
        self._name_servers = tuple(name_servers)
        self._timeout_s = timeout_s
        self._identity = identity
        self._connect_s = connect_s
        self._retries = retries
        self._brokers = None if brokers is None else tuple(brokers)
        self._found: dict[str, tuple[WritePlace, ...]] = {}

    def of(self, topic: str) -> tuple[WritePlace, ...]:
        """Return the brokers that take messages of a topic, by name; the same ones each time.

        Raises:
            TopicNotFoundError: there are none.
            ServiceError: no name server answers.
        """
        found = self._found.get(topic)
        if found is None:
            with NameServers(
                self._name_servers,
                self._timeout_s,
                self._identity,
                connect_s=self._connect_s,
                retries=self._retries,
            ) as servers:
                found = self._found[topic] = find_write_places(servers, topic, self._brokers)
        return found
