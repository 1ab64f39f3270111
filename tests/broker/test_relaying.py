"""What one client sends and another one gets: replies, and questions to consumers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from rmqstore_spark.remoting.access.signing import ACCESS_KEY, SIGNATURE
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import Request
from tests.broker.broker import Heard, broker, heartbeat
from tests.remoting.reading import read_frames
from tests.support.recordings import exchanges, frames

CHANGING = {"PUSH_REPLY_TIME", "bornHost", "storeHost", "storeTimestamp"}
"""What differs from one run to the next."""


class Answering(Heard):
    """A client's side that answers what it is asked.

    Args:
        code, body: of the answer.
    """

    def __init__(self, code: int = 0, body: bytes = b"") -> None:
        super().__init__()
        self.code = code
        self.body = body

    def requests(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.told.append(request.command)
            if request.command.is_one_way:
                request.drop()
            else:
                request.reply(request.command.answer(self.code, body=self.body))


def producer(client_id: str) -> Command:
    """The heartbeat of a producer."""
    told = {"clientID": client_id, "producerDataSet": [{"groupName": "pg_rpc"}]}
    return Command(RequestCode.HEART_BEAT, body=json.dumps(told).encode())


def fields(command: Command) -> dict[str, str]:
    """The fields of a header, and each property of its message as one of them."""
    ext = dict(command.ext)
    properties = ext.pop("properties").split("\x02")
    return ext | dict(each.split("\x01", 1) for each in properties)


def test_a_reply_reaches_the_producer_that_waits_for_it_as_from_a_broker(tmp_path: Path) -> None:
    (sent,) = [
        each
        for each in exchanges("java-reply", "broker")
        if each.request.header["code"] == RequestCode.SEND_REPLY_MESSAGE_V2
    ]
    (pushed,) = [
        each
        for each in frames("java-reply", "broker")
        if each.header["code"] == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    ]
    (reply,), (theirs,) = read_frames(sent.request.wire), read_frames(pushed.wire)
    assert sent.answer is not None
    (answered,) = read_frames(sent.answer.wire)
    client_id = fields(theirs)["REPLY_TO_CLIENT"]

    async def talk(address: str) -> None:
        requester, squatter = Answering(), Answering()
        async with (
            await RemotingClient.connect(address, service=requester, seconds=30) as waiting,
            await RemotingClient.connect(address, service=squatter, seconds=30) as other,
        ):
            topics = await other.ask_for(Command(RequestCode.GET_ALL_TOPIC_CONFIG), 30)
            assert b'"DefaultCluster_REPLY_TOPIC"' in topics.body  # its route must be found
            gone = await other.ask(reply, 30)
            assert gone.remark == f"push reply message fail, channel of <{client_id}> not found."
            await waiting.ask_for(producer(client_id), 30)
            await other.ask_for(producer(client_id), 30)  # which had its name first
            told = await other.ask_for(reply, 30)
            assert told.ext.keys() == answered.ext.keys()
            ((ours),) = requester.told
            assert not squatter.told
            assert (ours.code, ours.body) == (theirs.code, b"answer")
            mine, recorded = fields(ours), fields(theirs)
            assert mine.keys() == recorded.keys()
            for name in mine.keys() - CHANGING:
                assert mine[name] == recorded[name], name
            requester.code = 1
            refused = await other.ask(reply, 30)
            assert refused.code == 1
            assert refused.remark == f"push reply message to {client_id} fail: code 1"
            for field, value, words in (
                ("i", "MSG_TYPE\x01reply", "REPLY_TO_CLIENT] is null"),
                ("b", "orders", "a reply goes to a topic with a name like"),
            ):
                wrong = Command(reply.code, {**reply.ext, field: value}, reply.body)
                assert words in ((await other.ask(wrong, 30)).remark or "")
        async with await RemotingClient.connect(address, seconds=30) as other:
            assert "not found" in ((await other.ask(reply, 30)).remark or "")

    with broker(tmp_path / "store") as served:
        asyncio.run(talk(served.address))


def test_a_consumer_is_asked_about_itself(tmp_path: Path) -> None:
    async def talk(address: str) -> None:
        consumer = Answering(body=b'{"mqTable":{}}')
        ext = {"consumerGroup": "consumers", "clientId": "c1", "jstackEnable": "false"}
        signed = {**ext, ACCESS_KEY: "operator", SIGNATURE: "of the administrator"}
        asked = Command(RequestCode.GET_CONSUMER_RUNNING_INFO, signed)
        async with await RemotingClient.connect(address, seconds=30) as admin:
            async with await RemotingClient.connect(address, service=consumer, seconds=30) as one:
                await one.ask_for(heartbeat("c1", {"orders": "*"}), 30)
                assert (await admin.ask_for(asked, 30)).body == consumer.body
            (shown,) = [told for told in consumer.told if not told.is_one_way]
            assert shown.ext == ext
            asked.ext["clientId"] = "c2"
            gone = await admin.ask(asked, 30)
            assert (gone.code, gone.remark) == (1, "The Consumer <consumers> <c2> not online")

    with broker(tmp_path / "store") as served:
        asyncio.run(talk(served.address))


@pytest.mark.parametrize(("code", "words"), [(50, "files of aclPath"), (309, "resetOffsetByTime")])
def test_what_is_not_supported_says_what_to_do(tmp_path: Path, code: int, words: str) -> None:
    async def ask(address: str) -> Command:
        async with await RemotingClient.connect(address, seconds=30) as client:
            return await client.ask(Command(code), 30)

    with broker(tmp_path / "store") as served:
        told = asyncio.run(ask(served.address))
    assert told.code == 3
    assert (told.remark or "").startswith(f" request type {code} not supported")
    assert words in (told.remark or "")
