"""Asks name servers which brokers there are, and which of them have a topic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rmqstore_spark.client.brokers.alike import AlikeServers
from rmqstore_spark.client.brokers.answers import (
    BrokerPlace,
    read_brokers,
    read_names,
    read_route,
)
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command

__all__ = ["NameServers"]

_ANSWER_SECONDS: Final = 5.0


class NameServers:
    """Some name servers; they know nothing of each other, and any of them is asked.

    Args:
        addresses: of each, as `host:port`.
        timeout_s: seconds after which none has answered.
    """

    def __init__(self, addresses: Sequence[str], timeout_s: float) -> None:
        name = f"The name server {' or '.join(addresses)}"
        self._servers = AlikeServers(addresses, name, timeout_s, _ANSWER_SECONDS)

    def __enter__(self) -> NameServers:
        return self

    def __exit__(self, *_: object) -> None:
        self._servers.close()

    @property
    def name(self) -> str:
        """What they are, to begin a sentence with."""
        return self._servers.name

    def topics(self) -> list[str]:
        """Return the names of all topics.

        Raises:
            ServiceError: no name server answers.
        """
        asked = Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        answer = self._servers.ask(asked).command
        return read_names(answer, self.name)

    def brokers(self) -> list[BrokerPlace]:
        """Return all brokers, without their endpoints.

        Raises:
            ServiceError: no name server answers.
        """
        asked = Command(RequestCode.GET_BROKER_CLUSTER_INFO)
        answer = self._servers.ask(asked).command
        return read_brokers(answer, self.name)

    def routes(self, topics: Iterable[str]) -> dict[str, list[BrokerPlace]]:
        """Return the brokers of some topics, by topic; topics without a route are left out.

        Raises:
            ServiceError: no name server answers.
        """
        names = list(topics)
        fields = ({"topic": name, "acceptStandardJsonOnly": "true"} for name in names)
        asked = (Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, each) for each in fields)
        answers = self._servers.ask_all(asked)
        found = (read_route(answered.command, self.name) for answered in answers)
        return {name: route for name, route in zip(names, found, strict=True) if route}
