"""An application on RocketMQ's protocol: senders and a consumer, in a process that is killed.

    python -m tests.fault.rounds.remoting.application NAME_SERVER SEED NUMBER NUMBER NUMBER

Each sender has a connection, a queue, and numbers of its own from NUMBER on. It says `begin FIRST
COUNT` and, once that is acknowledged, `done FIRST COUNT`. The consumer says `got QUEUE OFFSET
NUMBER` before it tells the broker how far it is.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from typing import Final

import numpy as np

from rmqstore_spark.errors import ServiceError
from rmqstore_spark.layout.record.format import decode_records
from rmqstore_spark.layout.spans import binary_array
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import batch, message, number, pull, records_in, route
from tests.fault.messages import TOPICS
from tests.fault.process import say

TOPIC: Final = TOPICS[0]
GROUP: Final = "consumers"
_ANSWER_S: Final = 5.0
_HELD_MS: Final = 500
_PAUSE_S: Final = 0.05


def _body(one: int) -> bytes:
    return b"%012d" % one + b"." * (one * 7919 % 300)


async def _send(address: str, queue: int, first: int, seed: int) -> None:
    """Send messages and batches, one after the other. What fails is not sent again."""
    drawn, client = random.Random(seed), RemotingClient(address)
    while True:
        count = drawn.choice((1, 1, 1, 8))
        bodies = [_body(one) for one in range(first, first + count)]
        if count == 1:
            request = message(bodies[0], TOPIC, queue)
        else:
            request = batch(bodies, b=TOPIC, e=str(queue))
        say("begin", first, count)
        try:
            answer = await client.ask(request, _ANSWER_S)
        except ServiceError:
            await asyncio.sleep(_PAUSE_S)
        else:
            if answer.code == ResponseCode.SUCCESS:
                say("done", first, count)
            else:
                say("refused", first, answer.code, answer.remark)
                await asyncio.sleep(_PAUSE_S)
        first += count


async def _consume(address: str, queue: int) -> None:
    """Consume a queue from where the group is; as an orderly consumer, one after the other."""
    client, offset = RemotingClient(address), -1
    while True:
        try:
            if offset < 0:
                offset = await _progress(client, queue)
            offset = await _pull(client, queue, offset)
        except ServiceError:
            await asyncio.sleep(_PAUSE_S)


async def _progress(client: RemotingClient, queue: int) -> int:
    where = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue)}
    answer = await client.ask(Command(RequestCode.QUERY_CONSUMER_OFFSET, where), _ANSWER_S)
    if answer.code == ResponseCode.SUCCESS:
        return number(answer, "offset")
    return 0 if answer.code == ResponseCode.QUERY_NOT_FOUND else -1


async def _pull(client: RemotingClient, queue: int, offset: int) -> int:
    """Pull once, and wait for messages; returns the next offset."""
    if offset < 0:
        await asyncio.sleep(_PAUSE_S)
        return offset
    more = {"sysFlag": "7", "commitOffset": str(offset), "suspendTimeoutMillis": str(_HELD_MS)}
    answer = await client.ask(pull(offset, TOPIC, queue, **more), _ANSWER_S)
    if answer.code != ResponseCode.SUCCESS:
        return offset
    starts = np.cumsum([0, *map(len, records_in(answer.body))])
    data = np.frombuffer(answer.body, np.uint8)
    records = decode_records(data, starts[:-1], np.diff(starts).astype(np.int32))
    assert not records.status.any(), records.status
    bodies = binary_array(records.body).to_pylist()
    for at, body in zip(records.queue_offset.tolist(), bodies, strict=True):
        assert body == _body(int(body[:12])), body
        say("got", queue, at, int(body[:12]))
    return number(answer, "nextBeginOffset")


def broker_of(name_server: str, topic: str) -> str:
    """The address of the broker of a topic, once the name server knows it."""
    while True:
        try:
            found = route(name_server, topic)
        except ServiceError:
            found = None
        if found is not None:
            return str(found["brokerDatas"][0]["brokerAddrs"]["0"])
        time.sleep(_PAUSE_S)


async def _work(address: str, seed: int, numbers: list[int]) -> None:
    sending = [_send(address, queue, first, seed + queue) for queue, first in enumerate(numbers)]
    await asyncio.gather(*sending, *(_consume(address, queue) for queue in range(len(numbers))))


if __name__ == "__main__":
    _address = broker_of(sys.argv[1], TOPIC)
    say("ready")
    asyncio.run(_work(_address, int(sys.argv[2]), list(map(int, sys.argv[3:]))))
