"""Where RocketMQ's clients differ: what each of them says has the effect that it expects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from rmqstore_spark.reader import Store
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.bodies import parse_body
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command, Form
from tests.broker.broker import Served, broker, heartbeat, message, number, pull, records_in
from tests.broker.clients.records import read_record

_LONG = 30.0
_JAVA, _JS, _CPP = 409, 121, 63
"""The versions that they say they have."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A broker for all of these tests: each has topics and groups of its own."""
    with broker(tmp_path_factory.mktemp("broker") / "store") as found:
        yield found


def talk(served: Served, work: Callable[[RemotingClient], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with await RemotingClient.connect(served.address, seconds=_LONG) as client:
            return await work(client)

    return asyncio.run(run())


def ask(served: Served, *requests: Command) -> list[Command]:
    async def work(client: RemotingClient) -> list[Command]:
        answers = []
        for request in requests:
            answers.append(await client.ask(request, _LONG))
            await asyncio.to_thread(served.store.flush)  # what was sent is in its queue
        return answers

    found: list[Command] = talk(served, work)
    return found


def to(code: int, version: int = _JAVA, /, **fields: object) -> Command:
    return Command(code, {name: str(text) for name, text in fields.items()}, version=version)


def beat(client: str, group: str, topic: str, **more: object) -> Command:
    """A heartbeat of one consumer; more is added to what it says of its group."""
    made = heartbeat(client, {topic: "*"}, group)
    told = json.loads(made.body)
    told["consumerDataSet"][0].update(more)
    made.body = json.dumps(told).encode()
    return made


def sent_by(version: int, request: Command) -> Command:
    request.version = version
    return request


# ---- producers


def test_a_separator_behind_the_last_property_is_not_stored(served: Served) -> None:
    """C++ and JavaScript write one, Java does not. JavaScript gives messages no UNIQ_KEY."""
    with_it = message(b"js", "ends", i="TAGS\x01TagA\x02KEYS\x01j0\x02")
    without = message(b"java", "ends", i="TAGS\x01TagA\x02KEYS\x01j0")
    first, _, pulled = ask(served, sent_by(_JS, with_it), without, pull(0, "ends"))
    js, java = map(read_record, records_in(pulled.body))
    assert (
        js.properties
        == java.properties
        == b"TAGS\x01TagA\x02KEYS\x01j0\x02CLUSTER\x01DefaultCluster"
    )
    with Store.open(served.store.path) as store:
        row = next(row for part in store.read("ends", 0) for row in part.to_pylist())
    # Its own id is that of its place, as the producer and mqadmin's queryMsgById have it.
    assert (row["uniqKey"], row["msgId"]) == (None, first.ext["msgId"])
    place = int(first.ext["msgId"][16:], 16)
    (found,) = ask(served, to(RequestCode.VIEW_MESSAGE_BY_ID, offset=place))
    assert read_record(found.body).body == b"js"


@pytest.mark.parametrize(("version", "is_dead"), [(120, False), (_JS, True), (_JAVA, True)])
def test_how_often_a_message_may_come_counts_from_a_version_on(
    served: Served, version: int, is_dead: bool
) -> None:
    """Before 3.4.9, the number of the group counts: 16."""
    group = f"times{version}"
    retried = message(b"x", f"%RETRY%{group}", j="2", l="2")
    (sent,) = ask(served, sent_by(version, retried))
    assert sent.code == 0
    queues = served.store.stats()["queues"]
    assert (f"%DLQ%{group}" in queues, f"%RETRY%{group}" in queues) == (is_dead, not is_dead)


@pytest.mark.parametrize(("version", "is_dead"), [(_CPP, False), (120, False), (_JS, True)])
def test_how_often_a_message_is_sent_back_counts_from_a_version_on(
    served: Served, version: int, is_dead: bool
) -> None:
    group = f"back{version}"
    (sent,) = ask(served, message(b"x", "back"))
    place = int(sent.ext["msgId"][16:], 16)
    fields = {"offset": place, "group": group, "delayLevel": 18, "maxReconsumeTimes": 0}
    (answer,) = ask(served, to(RequestCode.CONSUMER_SEND_MSG_BACK, version, **fields))
    assert answer.code == 0
    assert (f"%DLQ%{group}" in served.store.stats()["queues"]) == is_dead


# ---- consumers


def test_a_connection_serves_a_producer_and_a_consumer(served: Served) -> None:
    """C++ and JavaScript have one connection for both; a pull that waits holds up no sends."""
    told = json.loads(beat("undefined@14459", "both", "shared").body)
    told["producerDataSet"] = [{"groupName": "makers"}]
    joined = Command(RequestCode.HEART_BEAT, body=json.dumps(told).encode())
    consumers = to(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="both")
    makers = to(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="makers")

    async def work(client: RemotingClient) -> list[Command]:
        await client.ask_for(joined, _LONG)
        await client.ask_for(message(b"first", "shared"), _LONG)
        await asyncio.to_thread(served.store.flush)
        held = pull(1, "shared", sysFlag="6", suspendTimeoutMillis="20000", consumerGroup="both")
        waiting = asyncio.create_task(client.ask(held, _LONG))
        await asyncio.sleep(0)
        await client.ask_for(message(b"second", "shared"), _LONG)
        woken = await waiting
        both = [await client.ask(consumers, _LONG), await client.ask(makers, _LONG)]
        # C++ names both groups, and leaves the one empty that it does not mean.
        leaving = to(
            RequestCode.UNREGISTER_CLIENT, clientID="undefined@14459", producerGroup="makers",
            consumerGroup="",
        )  # fmt: skip
        await client.ask_for(leaving, _LONG)
        left = [await client.ask(consumers, _LONG), await client.ask(makers, _LONG)]
        return [woken, *both, *left]

    woken, consumer, producer, still, gone = talk(served, work)
    assert read_record(woken.body).body == b"second"
    assert parse_body(consumer.body) == {"consumerIdList": ["undefined@14459"]}
    (connection,) = parse_body(producer.body)["connectionSet"]
    assert connection["clientId"] == "undefined@14459"
    assert (still.body, gone.code) == (consumer.body, 1)
    assert served.store.groups.get("") is None  # a broker creates this group


def test_a_subscription_is_in_the_request_or_in_the_heartbeat(served: Served) -> None:
    """Java's push consumers leave it out (2, 3), the others say it each time (6, 7)."""

    async def work(client: RemotingClient) -> list[Command]:
        for tag in ("a", "b"):
            await client.ask_for(message(tag.encode(), "subscribed", i=f"TAGS\x01{tag}"), _LONG)
        await asyncio.to_thread(served.store.flush)
        await client.ask_for(heartbeat("me", {"subscribed": "a"}, "subscribers"), _LONG)
        whose = {"consumerGroup": "subscribers", "topic": "subscribed", "queueId": 0}
        query = to(RequestCode.QUERY_CONSUMER_OFFSET, **whose)
        found = []
        for offset, flags in enumerate((2, 3, 6, 7), 1):
            asked: dict[str, Any] = {"sysFlag": str(flags), "commitOffset": str(offset)}
            asked |= {"consumerGroup": "subscribers", "subscription": "b"}
            found.append(await client.ask(pull(0, "subscribed", **asked), _LONG))
            found.append(await client.ask(query, _LONG))
        return found

    answers = talk(served, work)
    assert [read_record(each.body).body for each in answers[::2]] == [b"a", b"a", b"b", b"b"]
    # Bit 1 commits an offset.
    assert [number(each, "offset") for each in answers[1::2]] == [0, 2, 2, 4]


def test_an_offset_is_reported_with_or_without_an_answer(served: Served) -> None:
    """Java wants none, the others do."""
    whose = {"consumerGroup": "reporters", "topic": "reported", "queueId": 0}
    query = to(RequestCode.QUERY_CONSUMER_OFFSET, **whose)

    async def work(client: RemotingClient) -> list[int]:
        await client.ask_for(message(b"x", "reported"), _LONG)
        found = []
        for offset in (7, 5):  # it may go back
            report = to(RequestCode.UPDATE_CONSUMER_OFFSET, **whose, commitOffset=offset)
            await (client.tell(report) if offset == 7 else client.ask_for(report, _LONG))
            found.append(number(await client.ask_for(query, _LONG), "offset"))
        return found

    assert talk(served, work) == [7, 5]


def test_each_broadcast_consumer_gets_everything(served: Served) -> None:
    """They keep their offsets themselves; the broker has none for them."""
    group = "broadcast"

    async def member(name: str) -> list[bytes]:
        async with await RemotingClient.connect(served.address, seconds=_LONG) as client:
            joining = beat(name, group, "news", messageModel="BROADCASTING")
            await client.ask_for(joining, _LONG)
            asked: dict[str, Any] = {"consumerGroup": group, "sysFlag": "2", "subVersion": "1"}
            bodies = []
            for queue in range(2):
                answer = await client.ask_for(pull(0, "news", queue, **asked), _LONG)
                bodies += [read_record(record).body for record in records_in(answer.body)]
            return bodies

    ask(served, message(b"0", "news", 0), message(b"1", "news", 1))
    one, two = asyncio.run(member("one")), asyncio.run(member("two"))
    assert one == two == [b"0", b"1"]
    assert not [key for key in served.store.consumer_offsets.table() if key.endswith(f"@{group}")]
    stats, by_topic = ask(
        served,
        to(RequestCode.GET_CONSUME_STATS, consumerGroup=group),
        to(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="news"),
    )
    assert parse_body(stats.body)["offsetTable"] == {}
    assert parse_body(by_topic.body) == {"groupList": []}


@pytest.mark.parametrize("model", ["BROADCASTING", 0])
def test_a_group_may_be_kept_from_broadcasting(served: Served, model: object) -> None:
    """Java says how it consumes by name, C++ by number."""
    group = f"clustered{model}"
    settings = {"groupName": group, "consumeBroadcastEnable": False}
    update = Command(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps(settings).encode()
    )
    asked: dict[str, Any] = {"consumerGroup": group, "sysFlag": "2", "subVersion": "1"}
    *_, refused, _, allowed = ask(
        served,
        update,
        message(b"x", group),
        beat("one", group, group, messageModel=model),
        pull(0, group, **asked),
        beat("one", group, group, messageModel="CLUSTERING"),
        pull(0, group, **asked),
    )
    assert refused.code == 16
    assert refused.remark == f"the consumer group[{group}] can not consume by broadcast way"
    assert (allowed.code, len(records_in(allowed.body))) == (0, 1)


# ---- all of them


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("version", [-1, 0, 1, 413, 500, (1 << 15) - 1])
def test_any_version_is_served(served: Served, form: Form, version: int) -> None:
    """Also those that no RocketMQ has, or that are yet to come; and any language."""
    group = f"version{version}-{form}"
    requests = [
        message(b"x", group),
        pull(0, group, consumerGroup=group),
        beat("old", group, group),
        to(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=group),
    ]
    for request in requests:
        request.version, request.form, request.language = version, form, "RUST"
    answers = ask(served, *requests)
    assert [each.code for each in answers] == [0, 0, 0, 0]
    assert {(each.version, each.form) for each in answers} == {(_JAVA, form)}
    (connection,) = parse_body(answers[3].body)["connectionSet"]
    assert (connection["version"], connection["language"]) == (version, "RUST")
