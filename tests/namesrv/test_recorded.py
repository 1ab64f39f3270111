"""What real brokers, clients and mqadmin asked 4.9.8's name server, and what it answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from rmqstore_spark.namesrv.config import NamesrvConfig
from rmqstore_spark.namesrv.process import running
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.bodies import parse_body
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import LANGUAGES, Command
from tests.namesrv.registering import registration, topic
from tests.remoting.reading import read_frames
from tests.support.recordings import RECORDINGS, Exchange, exchanges, frames

_CLIENTS = [name for name in RECORDINGS if exchanges(name, "namesrv") and name != "raw-acl"]


async def _answers(config: NamesrvConfig, primed: list[Command], asked: list[Exchange]) -> Any:
    """Send recorded requests one by one; give each exchange with our answer."""
    found = []
    async with running(config) as address, await RemotingClient.connect(address) as broker:
        for each in primed:
            await broker.ask_for(each)
        clients: dict[int, RemotingClient] = {}
        for exchange in asked:
            (request,) = read_frames(exchange.request.wire)
            number = exchange.request.connection
            if number not in clients:
                clients[number] = await RemotingClient.connect(address)
            if request.is_one_way:
                await clients[number].tell(request)
            else:
                found.append((exchange, await clients[number].ask(request)))
        for client in clients.values():
            client.close()
    return found


def _comparable(body: bytes) -> Any:
    """A body without the order of what has none."""
    if not body.startswith(b"{"):
        return body
    found = parse_body(body)
    if "topicList" in found:
        found["topicList"].sort()
    for name in ("brokerDatas", "queueDatas"):
        found.get(name, []).sort(key=lambda each: each["brokerName"])
    return found


def _same(exchange: Exchange, ours: Command) -> None:
    assert exchange.answer is not None
    theirs = exchange.answer.header
    where = exchange.request.header
    assert ours.code == theirs["code"], where
    assert ours.ext == (theirs.get("extFields") or {}), where
    # Behind the first line, the remark says where to read on.
    assert (ours.remark or "").split("\n")[0] == (theirs.get("remark") or "").split("\n")[0]
    assert ours.version == theirs["version"]
    assert theirs["language"] in (ours.language, LANGUAGES.index(ours.language))
    assert _comparable(ours.body) == _comparable(exchange.answer.body), where


def test_a_real_brokers_registrations_are_answered_alike(
    config: Callable[..., NamesrvConfig],
) -> None:
    asked = exchanges("broker-namesrv", "namesrv")
    found = asyncio.run(_answers(config(), [], asked))
    assert len(found) > 5
    for exchange, ours in found:
        _same(exchange, ours)


def _primed(asked: list[Exchange]) -> list[Command]:
    """The registrations that the recorded name server must have had, from all that it said."""
    addresses = {"broker-a": "127.0.0.1:10911"}
    topics: dict[str, dict[str, dict[str, Any]]] = {"broker-a": {}}
    listed: list[str] = []
    for exchange in asked:
        header = exchange.request.header
        if exchange.answer is None or exchange.answer.header["code"] != 0:
            continue
        if header["code"] == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            route = parse_body(exchange.answer.body)
            for broker in route["brokerDatas"]:
                addresses[broker["brokerName"]] = broker["brokerAddrs"]["0"]
            for told in route["queueDatas"]:
                of_broker = topics.setdefault(told["brokerName"], {})
                name = header["extFields"]["topic"]
                of_broker.setdefault(name, topic(name, told["writeQueueNums"], told["perm"]))
        elif header["code"] == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            listed += parse_body(exchange.answer.body)["topicList"]
    for name in listed:
        topics["broker-a"].setdefault(name, topic(name))
    return [
        registration(of_broker.values(), name=name, address=addresses[name])
        for name, of_broker in topics.items()
    ]


@pytest.mark.parametrize(
    "name", [name for name in _CLIENTS if name.startswith(("java", "cpp", "js", "mqadmin"))]
)
def test_real_clients_are_answered_alike(name: str, config: Callable[..., NamesrvConfig]) -> None:
    asked = [
        exchange
        for exchange in exchanges(name, "namesrv")
        # What it says differs by nature: it lists the recorded name server's threads and buffers.
        if exchange.request.header["code"] != RequestCode.GET_NAMESRV_CONFIG
    ]
    found = asyncio.run(_answers(config(), _primed(asked), _settled(asked)))
    assert found
    for exchange, ours in found:
        _same(exchange, ours)


def _settled(asked: list[Exchange]) -> list[Exchange]:
    """The requests about topics of which the recorded name server said the same all the time."""
    said: dict[str, set[str]] = {}
    for each in asked:
        if each.answer and each.request.header["code"] == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            topic_ = each.request.header["extFields"]["topic"]
            said.setdefault(topic_, set()).add(str(_comparable(each.answer.body)))
    return [
        each
        for each in asked
        if each.request.header["code"] != RequestCode.GET_ROUTEINFO_BY_TOPIC
        or len(said[each.request.header["extFields"]["topic"]]) == 1
    ]


def test_a_slave_is_told_its_master(config: Callable[..., NamesrvConfig]) -> None:
    asked = exchanges("slave-master-admin", "namesrv")
    found = asyncio.run(_answers(config(), [registration()], asked))
    assert any("masterAddr" in ours.ext for _, ours in found)
    for exchange, ours in found:
        _same(exchange, ours)


def test_requests_made_by_hand_are_answered_alike(config: Callable[..., NamesrvConfig]) -> None:
    asked = exchanges("raw-edges", "namesrv")
    known = {"TBW102", "RecPush"}
    found = asyncio.run(_answers(config(), [registration(known)], asked))
    seen = set()
    for exchange, ours in found:
        code = exchange.request.header["code"]
        if exchange.answer is None:
            # 4.9.8's name server does not answer codes that it does not know.
            assert ours.code == 3
            assert ours.remark == f" request type {code} not supported"
        elif code in (105, 224) and exchange.answer.header["code"] == 0:
            continue  # its topics are not known from this recording
        elif code == RequestCode.UPDATE_NAMESRV_CONFIG:
            assert ours.code == exchange.answer.header["code"]
            assert (ours.remark or "").startswith(exchange.answer.header["remark"])
        else:
            _same(exchange, ours)
        seen.add(code)
    assert {101, 104, 219, 304, 103, 322, 205, 318} <= seen


def test_the_recorded_settings_of_a_name_server_are_known() -> None:
    (body,) = [
        each.answer.body
        for each in exchanges("mqadmin", "namesrv")
        if each.answer and each.request.header["code"] == RequestCode.GET_NAMESRV_CONFIG
    ]
    values = dict(line.split("=", 1) for line in body.decode().splitlines())
    assert NamesrvConfig().with_overrides(values).listen_port == 9876


def test_all_frames_of_brokers_are_json_that_any_parser_reads() -> None:
    """Only then do the tests above compare what they should."""
    for frame in frames("broker-namesrv", "namesrv"):
        if frame.body.startswith(b"{"):
            json.loads(frame.body)
