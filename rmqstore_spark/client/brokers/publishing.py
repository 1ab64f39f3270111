"""Finds the brokers that accept messages for a topic, even one that does not exist yet.

Upstream: DefaultMQProducerImpl.tryToFindTopicPublishInfo.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rmqstore_spark.client.brokers.answers import WritePlace
from rmqstore_spark.client.brokers.routes import NameServers
from rmqstore_spark.client.contact import CONNECT_SECONDS
from rmqstore_spark.errors import TopicNotFoundError
from rmqstore_spark.layout.constants import AUTO_CREATE_TOPIC
from rmqstore_spark.remoting.access.identity import ClientIdentity

"""The topic whose route and settings a topic takes that a broker creates by itself."""
DEFAULT_QUEUES: Final = 4
"""Most queues of such a topic on each broker (defaultTopicQueueNums of a producer)."""


def find_write_places(
    servers: NameServers, topic: str, wanted: Sequence[str] | None = None
) -> tuple[WritePlace, ...]:
    """Return the brokers that take messages of a topic, by name.

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
