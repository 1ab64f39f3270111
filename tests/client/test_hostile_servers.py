"""Name servers and brokers that answer with what only an attacker sends."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from rmqstore_spark.client.brokers import server_group
from rmqstore_spark.client.brokers.answers import (
    WritePlace,
    read_names,
    read_topics,
    read_write_places,
)
from rmqstore_spark.client.brokers.broker import BrokerClient
from rmqstore_spark.client.brokers.routes import NameServers, PublishRoutes
from rmqstore_spark.client.brokers.sending import MessageSender, Outgoing, OutgoingMessage
from rmqstore_spark.client.brokers.server_group import Addresses
from rmqstore_spark.errors import ServiceError
from rmqstore_spark.remoting.access.identity import ClientIdentity
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.frames import encode_frame
from tests.client.hostile import Answering, hostile
from tests.support.waiting import PATIENCE


def of_nobody(connection: socket.socket, asked: Command, ended: threading.Event) -> None:
    """Answer requests that were never made, soon enough to look alive."""
    answer = asked.answer()
    while not ended.wait(0.05):
        answer.opaque += 1000
        connection.sendall(encode_frame(answer))


def drips(connection: socket.socket, _: Command, ended: threading.Event) -> None:
    """Send a large frame byte by byte."""
    connection.sendall((1 << 23).to_bytes(4, "big"))
    while not ended.wait(0.05):
        connection.sendall(b"\0")


def other_protocol(connection: socket.socket, _: Command, ended: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    ended.wait(PATIENCE)


class ToOne(PublishRoutes):
    """All topics have one broker."""

    def __init__(self, address: str) -> None:
        super().__init__((), 1, ClientIdentity())
        self._place = WritePlace("b", address, "", 1)

    def of(self, topic: str) -> tuple[WritePlace, ...]:
        return (self._place,)


def ask(address: str) -> None:
    places = Addresses((address,), has_master=True)
    with closing(BrokerClient("b", places, 0.3, 0.3, ClientIdentity())) as client:
        client.max_offsets([("orders", 0)])


def send(address: str) -> None:
    out = Outgoing(OutgoingMessage("orders", b"x", 1), "b", 0, can_move=False)
    sending = MessageSender(ToOne(address), 1 << 20, 0.3, 0, ClientIdentity())
    with closing(sending):
        sending.send(out)
        sending.finish()


@pytest.mark.threat("What a broker sends")
@pytest.mark.parametrize("work", [ask, send])
@pytest.mark.parametrize(
    ("answering", "words"),
    [
        (of_nobody, "no answer in time"),
        (drips, "no answer in time"),
        (other_protocol, "what is not RocketMQ's protocol"),
    ],
)
def test_who_gives_no_answer_is_given_up(
    answering: Answering, words: str, work: Callable[[str], None]
) -> None:
    told: list[Exception] = []

    def run(address: str) -> None:
        try:
            work(address)
        except ServiceError as error:
            told.append(error)

    with hostile(answering) as address:
        working = threading.Thread(target=run, args=(address,), daemon=True)
        working.start()
        working.join(PATIENCE)
        assert not working.is_alive()
    assert words in str(told[0])


def answer(told: Any) -> Command:
    return Command(0, body=json.dumps(told).encode())


@pytest.mark.threat("What a broker sends")
def test_absurd_numbers_of_brokers_and_queues_are_refused() -> None:
    brokers = [{"brokerName": f"../../{n}", "brokerAddrs": {"0": "h:1"}} for n in range(10_001)]
    with pytest.raises(ServiceError, match="it names 10001 brokers"):
        read_write_places(answer({"brokerDatas": brokers}), "a name server")
    queues = [{"brokerName": f"../../{n}", "writeQueueNums": 60_000} for n in range(17)]
    route = answer({"brokerDatas": brokers[:17], "queueDatas": queues})
    with pytest.raises(ServiceError, match="it names 1020000 queues"):
        read_write_places(route, "a name server")
    table = answer({"topicConfigTable": {f"t{n}": {"readQueueNums": 60_000} for n in range(17)}})
    with pytest.raises(ServiceError, match="it names 1020000 queues"):
        read_topics(table, "a broker")
    with pytest.raises(ServiceError, match="it names 200001 topics"):
        read_names(answer({"topicList": ["t"] * 200_001}), "a name server")


@pytest.mark.threat("What a broker sends")
def test_answers_that_are_too_long_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_group, "_MOST_BYTES", 1 << 20)

    def fat(connection: socket.socket, first: Command, _: threading.Event) -> None:
        body = b'{"brokerDatas":[]}' + b" " * 400_000
        for number in range(3):
            told = first.answer(body=body)
            told.opaque += number
            connection.sendall(encode_frame(told))

    with hostile(fat) as address, NameServers([address], 20, ClientIdentity()) as servers:
        assert servers.routes(["a", "b"]) == {}
        with pytest.raises(ServiceError, match=r"more than 1 MiB in answer to 3 of 3 .*subscribe"):
            servers.routes(["a", "b", "c"])
