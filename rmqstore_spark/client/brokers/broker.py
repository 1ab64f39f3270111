"""Asks one broker: for its topics, for offsets of queues and groups, and for messages."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from rmqstore_spark.client.brokers.answers import (
    BrokerTopic,
    Pulled,
    nonsense,
    read_groups,
    read_offset,
    read_pulled,
    read_topics,
    refusal,
)
from rmqstore_spark.client.brokers.server_group import Addresses, ServerFinder, ServerGroup
from rmqstore_spark.client.contact import CONNECT_SECONDS
from rmqstore_spark.errors import TopicNotFoundError
from rmqstore_spark.remoting.access.identity import ClientIdentity
from rmqstore_spark.remoting.codec.bodies import dump_body
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command

_CLIENT: Final = "rmqstore-spark"


_T = TypeVar("_T")

QueueName: TypeAlias = tuple[str, int]
"""A topic, and the number of a queue."""

ALL_TAGS: Final = "*"
_GROUP: Final = "TOOLS_CONSUMER"
"""The group that pulls, as for mqadmin: a broker that creates no groups has it too."""
_HAS_SUBSCRIPTION: Final = "4"


class BrokerClient:
    """Asks the processes of one broker name: the master, or a slave if it does not answer.

    Use it in one thread.

    Args:
        name: the broker name.
        addresses: of the master and then its slaves.
        timeout_s: seconds after which none has answered.
        answer_s: seconds that one of them may take for an answer.
        identity: as whom this side talks to them.
        patience_s: for how many seconds to try the master before its slaves are asked.
        finder: finds them again if none of them answers.
        connect_s, retries: see `ServerGroup`.
    """

    def __init__(
        self,
        name: str,
        addresses: Addresses,
        timeout_s: float,
        answer_s: float,
        identity: ClientIdentity,
        *,
        patience_s: float = 0.0,
        finder: ServerFinder | None = None,
        connect_s: float | None = CONNECT_SECONDS,
        retries: int | None = None,
    ) -> None:
        self.servers = ServerGroup(
            addresses,
            f"The broker {name}",
            timeout_s,
            answer_s,
            identity,
            patience_s=patience_s,
            finder=finder,
            connect_s=connect_s,
            retries=retries,
        )

    @property
    def name(self) -> str:
        """What it is, to begin a sentence with."""
        return self.servers.name

    def close(self) -> None:
        """Close the connections."""
        self.servers.close()

    def topics(self) -> dict[str, BrokerTopic]:
        """Return the topics by name.

        Raises:
            ServiceError: the broker does not answer.
        """
        asked = Command(RequestCode.GET_ALL_TOPIC_CONFIG)
        return read_topics(self.servers.ask(asked).command, self.name)

    def max_offsets(self, queues: Sequence[QueueName]) -> list[int]:
        """Return one past the last offset of each queue; 0 for a queue that does not exist.

        Raises:
            ServiceError: the broker does not answer.
        """
        return self._offsets(RequestCode.GET_MAX_OFFSET, queues)

    def min_offsets(self, queues: Sequence[QueueName]) -> list[int]:
        """Return the first offset of each queue; 0 for a queue that does not exist.

        Raises:
            ServiceError: the broker does not answer.
        """
        return self._offsets(RequestCode.GET_MIN_OFFSET, queues)

    def _offsets(self, code: RequestCode, queues: Sequence[QueueName]) -> list[int]:
        asked = (Command(code, _of(queue)) for queue in queues)
        return self._all(asked, lambda answer: max(0, read_offset(answer, self.name)))

    def search_offset(self, queue: QueueName, timestamp: int) -> int:
        """Return the offset of a message that was stored next to a time, before or after it.

        Args:
            queue: the queue.
            timestamp: milliseconds.

        Raises:
            ServiceError: the broker does not answer.
        """
        fields = {**_of(queue), "timestamp": str(timestamp)}
        asked = Command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)
        return read_offset(self.servers.ask(asked).command, self.name)

    def group_offsets(self, group: str, queues: Sequence[QueueName]) -> list[int | None]:
        """Return the next offset that a group consumes of each queue; None if it has none.

        A broker also answers 0 for a queue that the group has not consumed, if the queue is young.

        Raises:
            ServiceError: the broker does not answer.
        """

        def read(answer: Command) -> int | None:
            if answer.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            offset = read_offset(answer, self.name)
            return None if offset < 0 else offset

        return self._all(
            (
                Command(RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": group, **_of(queue)})
                for queue in queues
            ),
            read,
        )

    def groups(self) -> frozenset[str]:
        """Return the names of the consumer groups.

        Raises:
            ServiceError: the broker does not answer.
        """
        asked = Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return read_groups(self.servers.ask(asked).command, self.name)

    def introduce(self, group: str) -> None:
        """Make a consumer group known, by a heartbeat of a consumer that then takes leave.

        The broker then creates the group, if `autoCreateSubscriptionGroup` lets it, and the group's
        retry topic (upstream: ClientManageProcessor). An account needs no more for it than to
        consume. Brokers of RocketMQ 5 take no offsets of a group that they do not know, and mqadmin
        finds groups by their retry topics.

        A group that has consumers is known already. It is left alone, because they would share
        their queues with this one.

        Raises:
            ServiceError: the broker does not answer.
            RemotingError: it refuses the group.
        """
        ask = self.servers.ask
        members = Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
        if ask(members).command.code == ResponseCode.SUCCESS:
            return
        client = f"{_CLIENT}@{os.getpid()}"
        consumer = {
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "consumeType": "CONSUME_PASSIVELY",  # a broker may reject the other kind
            "groupName": group,
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": [],
            "unitMode": False,
        }
        beat = {"clientID": client, "consumerDataSet": [consumer], "producerDataSet": []}
        leave = {"clientID": client, "consumerGroup": group}
        answer = ask(Command(RequestCode.HEART_BEAT, body=dump_body(beat))).command
        ask(Command(RequestCode.UNREGISTER_CLIENT, leave))
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer, self.name)

    def commit_offsets(self, group: str, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Set the next offsets that a group consumes.

        Args:
            group: its name.
            offsets: by topic and queueId.

        Raises:
            ServiceError: the broker does not answer.
            RemotingError: it refuses that.
        """

        def check(answer: Command) -> None:
            if answer.code != ResponseCode.SUCCESS:
                raise refusal(answer, self.name)

        self._all(
            (
                Command(
                    RequestCode.UPDATE_CONSUMER_OFFSET,
                    {"consumerGroup": group, **_of((topic, number)), "commitOffset": str(offset)},
                )
                for topic, queues in offsets.items()
                for number, offset in queues.items()
            ),
            check,
        )

    def message(self, queue: QueueName, offset: int) -> Pulled:
        """Pull one message.

        Raises:
            ServiceError: the broker does not answer, or its answer makes no sense.
            TopicNotFoundError: it no longer has the topic.
            RemotingError: it refuses that.
        """
        return self.messages([(queue, offset)])[0]

    def messages(self, places: Sequence[tuple[QueueName, int]], most: int = 1) -> list[Pulled]:
        """Pull from offsets of queues, by default single messages.

        Args:
            places: the queues, and the offsets.
            most: most messages from each, as many as a broker gives at once.

        Raises:
            ServiceError: the broker does not answer, or an answer makes no sense.
            TopicNotFoundError: it no longer has a topic.
            RemotingError: it refuses that.
        """
        asked = [pull_request(queue, offset, most, ALL_TAGS) for queue, offset in places]
        answers = self.servers.ask_all(asked)
        return [
            self.read_pull(command, answer.command)
            for command, answer in zip(asked, answers, strict=True)
        ]

    def read_pull(self, asked: Command, answer: Command) -> Pulled:
        """Read the answer to a pull.

        Raises:
            ServiceError: it makes no sense.
            TopicNotFoundError: the broker no longer has the topic.
            RemotingError: it refuses the pull.
        """
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise TopicNotFoundError(f"{self.name} no longer has the topic {asked.ext['topic']}.")
        pulled = read_pulled(answer, self.name)
        offset = int(asked.ext["queueOffset"])
        if pulled.code == ResponseCode.SUCCESS and not (pulled.data and pulled.next > offset):
            told = f"{len(pulled.data)} bytes of messages from {offset} on lead to {pulled.next}"
            raise nonsense(self.name, told)
        return pulled

    def _all(self, asked: Iterable[Command], read: Callable[[Command], _T]) -> list[_T]:
        """Send requests together, and read their answers, in the same order."""
        return [read(answered.command) for answered in self.servers.ask_all(asked)]


def _of(queue: QueueName) -> dict[str, str]:
    return {"topic": queue[0], "queueId": str(queue[1])}


def pull_request(queue: QueueName, offset: int, most: int, tags: str) -> Command:
    """Return a request for messages from an offset on, as many as a broker gives at once.

    Args:
        queue: the queue.
        offset: the first offset.
        most: most messages.
        tags: a tag expression; the broker compares hash codes of tags alone.
    """
    fields = {
        "consumerGroup": _GROUP,
        **_of(queue),
        "queueOffset": str(offset),
        "maxMsgNums": str(most),
        "sysFlag": _HAS_SUBSCRIPTION,
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": tags,
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return Command(RequestCode.PULL_MESSAGE, fields)
