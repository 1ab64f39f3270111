"""Makes a consumer group known to a broker, as the first heartbeat of its consumers does.

A broker then creates the group, if `autoCreateSubscriptionGroup` lets it, and the group's retry
topic (upstream: ClientManageProcessor). An account needs no more for it than to consume. Brokers of
RocketMQ 5 take no offsets of a group that they do not know, and mqadmin finds groups by their retry
topics.
"""

from __future__ import annotations

import os
from typing import Final

from rmqstore_spark.client.brokers.answers import refusal
from rmqstore_spark.client.brokers.server_group import ServerGroup
from rmqstore_spark.remoting.codec.bodies import dump_body
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command

_CLIENT: Final = "rmqstore-spark"


def introduce(servers: ServerGroup, group: str) -> None:
    """Send a broker a heartbeat of a consumer of a group, and take leave.

    A group that has consumers is known already. It is left alone, because they would share their
    queues with this one.

    Args:
        servers: of the broker.
        group: the consumer group.

    Raises:
        ServiceError: the broker does not answer.
        RemotingError: it refuses the group.
    """
    members = Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    if servers.ask(members).command.code == ResponseCode.SUCCESS:
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
    answer = servers.ask(Command(RequestCode.HEART_BEAT, body=dump_body(beat))).command
    servers.ask(Command(RequestCode.UNREGISTER_CLIENT, leave))
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer, servers.name)
