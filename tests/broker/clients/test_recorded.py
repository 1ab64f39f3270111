"""Single requests that a real broker was asked, and what both brokers answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.bodies import parse_body
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import broker, message
from tests.remoting.reading import read_frames
from tests.support.recordings import Exchange, exchanges

_PLACES = {
    *("msgId", "queueOffset", "nextBeginOffset", "minOffset", "maxOffset", "offset"),
    *("indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"),
}
"""What depends on the messages that the recorded broker had before."""


async def replay(address: str, asked: list[Exchange]) -> list[tuple[Exchange, Command]]:
    """Send recorded requests one by one; give each that was answered with our answer."""
    found = []
    clients: dict[int, RemotingClient] = {}
    for exchange in asked:
        (request,) = read_frames(exchange.request.wire)
        key = exchange.request.connection
        if key not in clients:
            clients[key] = await RemotingClient.connect(address, seconds=30)
        if request.is_one_way:
            await clients[key].tell(request)
        else:
            found.append((exchange, await clients[key].ask(request, 40)))
    for client in clients.values():
        client.close()
    return found


def same_form(exchange: Exchange, ours: Command) -> None:
    """Compare answers but for offsets and ids."""
    assert exchange.answer is not None
    header, theirs = exchange.request.header, exchange.answer.header
    assert ours.code == theirs["code"], (header, ours)
    fields = theirs.get("extFields") or {}
    assert ours.ext.keys() == fields.keys(), (header, ours)
    asked = header.get("extFields", {})
    passed_over = _PLACES | ({"queueId"} if str(asked.get("e")) == "-1" else set())  # any queue
    for name, value in ours.ext.items():
        if name not in passed_over:
            assert value == fields[name], (header, ours)
    assert _said(ours.remark) == _said(theirs.get("remark")), header
    assert (ours.version, ours.flag & 1) == (theirs["version"], 1)
    if not ours.code and exchange.answer.body.startswith(b"{"):
        assert _comparable(ours.body) == _comparable(exchange.answer.body)


def _comparable(body: bytes) -> Any:
    """A JSON body without an order of what has none."""
    told = parse_body(body)
    return {name: sorted(map(str, value)) for name, value in told.items()}


def _said(remark: str | None) -> str:
    """What a remark says first, without the address of a client."""
    first = (remark or "").split("\n")[0].strip()
    return first.partition(" consumer:")[0]


def test_a_batch_of_cpp_is_one_message_as_for_a_broker(tmp_path: Path) -> None:
    """It says so with `"batch":"1"`, which is not true: only `true` is."""
    (sent,) = [
        each
        for each in exchanges("cpp-send-push", "broker")
        if each.request.header["code"] == RequestCode.SEND_MESSAGE
        and each.request.header["extFields"]["batch"] == "1"
    ]
    with broker(tmp_path / "store") as served:
        served.store.create_topic("RecCpp", read_queue_nums=4)
        ((_, ours),) = asyncio.run(replay(served.address, [sent]))
        assert served.store.stats()["putMessages"] == 1
    same_form(sent, ours)


def test_requests_made_by_hand_are_answered_alike(tmp_path: Path) -> None:
    asked = [each for each in exchanges("raw-edges", "broker") if _is_handled(each)]
    with broker(tmp_path / "store") as served:
        served.store.create_topic("RecSend", read_queue_nums=4)
        served.store.create_topic("RecReadOnly", read_queue_nums=4, perm=4)
        first = [message(b"before", "RecSend", queue) for queue in (0, 0, 1, 2, 3)]
        asyncio.run(_prepare(served.address, first))
        found = asyncio.run(replay(served.address, asked))
    seen = set()
    for exchange, ours in found:
        header = exchange.request.header
        if header.get("extFields", {}).get("b") == "RecReadOnly":
            assert ours.code == 16  # a broker stores it: it does not look at the topic's permission
        elif exchange.request.body == b"xx" or _names_what_is_missing(exchange):
            assert ours.code in (1, 13)  # a broker says which of its lines failed
            assert ours.remark
        else:
            same_form(exchange, ours)
        seen.add(header["code"])
    assert {10, 11, 14, 15, 17, 29, 30, 31, 32, 33, 34} <= seen
    assert {12, 36, 37, 38, 41, 42, 46, 202, 310, 320, 9999} <= seen


def _is_handled(exchange: Exchange) -> bool:
    """Whether it is a request that this broker knows, or that no broker does."""
    code, fields = exchange.request.header["code"], exchange.request.header.get("extFields", {})
    if code == RequestCode.VIEW_MESSAGE_BY_ID and fields["offset"] == "1":
        return False  # a broker answers it although no message begins there
    return exchange.answer is not None


def _names_what_is_missing(exchange: Exchange) -> bool:
    assert exchange.answer is not None
    return "java." in (exchange.answer.header.get("remark") or "")


async def _prepare(address: str, requests: list[Command]) -> None:
    async with await RemotingClient.connect(address, seconds=30) as client:
        for each in requests:
            await client.ask_for(each, 30)
