"""What consumers get, and how they wait for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from rmqstore_spark.broker.faces.remoting.lanes.pulling import Consuming
from rmqstore_spark.layout.fastjson import parse_fastjson
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.reader import Store
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import (
    Heard,
    Served,
    broker,
    heartbeat,
    message,
    number,
    pull,
    records_in,
)
from tests.support.instances import instances_of
from tests.support.messages.batches import commit_batch, rows_block
from tests.support.waiting import eventually

_HOLD: dict[str, Any] = {"sysFlag": "6", "suspendTimeoutMillis": "20000"}
_LONG = 30.0


def run(served: Served, work: Callable[[RemotingClient], Awaitable[Any]], **more: Any) -> Any:
    async def connected() -> Any:
        client = await RemotingClient.connect(served.address, seconds=_LONG, **more)
        async with client:
            return await work(client)

    return asyncio.run(connected())


def ask(served: Served, *requests: Command) -> list[Command]:
    async def work(client: RemotingClient) -> list[Command]:
        return [await client.ask(request, _LONG) for request in requests]

    return run(served, work)


def request(code: int, /, **fields: object) -> Command:
    return Command(code, {name: str(value) for name, value in fields.items()})


def four_messages() -> U1:
    """Messages of one queue; two of them have the tag a."""
    return rows_block([b"0", b"1", b"2", b"3"], ["orders"])


def send(served: Served, *tags: str, queue: int = 0) -> None:
    """Send a message for each tag, and wait until they are in the queue."""
    answers = ask(
        served,
        *(message(b"%d" % n, queue=queue, i=f"TAGS\x01{tag}") for n, tag in enumerate(tags)),
    )
    assert [answer.code for answer in answers] == [0] * len(tags)
    served.store.flush()


def test_the_outcomes_of_a_pull(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with broker(path) as served:
        send(served, "a", "b", "a", "c")
        found = ask(
            served,
            pull(0),
            pull(1, maxMsgNums="2"),
            pull(0, maxMsgNums="0"),
            pull(0, sysFlag="22", maxMsgNums="10"),  # of Java's lite pull consumer
            pull(0, subscription="a || c"),
            pull(1, subscription="b", maxMsgNums="1"),
            pull(0, subscription="nobody"),
            pull(4),
            pull(5),
            pull(-5),
            pull(0, queue=1),
            pull(9, queue=1),
        )
        said = [
            (each.code, each.remark, number(each, "nextBeginOffset"), len(records_in(each.body)))
            for each in found
        ]
        assert said == [
            (0, "FOUND", 4, 4),
            (0, "FOUND", 3, 2),
            (0, "FOUND", 1, 1),
            (0, "FOUND", 4, 4),
            (0, "FOUND", 4, 3),
            (0, "FOUND", 2, 1),
            (20, "NO_MATCHED_MESSAGE", 4, 0),
            (19, "OFFSET_OVERFLOW_ONE", 4, 0),
            (21, "OFFSET_OVERFLOW_BADLY", 4, 0),
            (21, "OFFSET_TOO_SMALL", 0, 0),
            (19, "NO_MESSAGE_IN_QUEUE", 0, 0),
            (21, "NO_MESSAGE_IN_QUEUE", 0, 0),
        ]
        bounds = [(number(each, "minOffset"), number(each, "maxOffset")) for each in found]
        assert bounds == [(0, 4)] * 10 + [(0, 0)] * 2
    log = b"".join(file.read_bytes() for file in sorted((path / "commitlog").iterdir()))
    assert log.startswith(found[0].body)


def test_refused_pulls(tmp_path: Path) -> None:
    with broker(tmp_path / "store") as served:
        served.store.create_topic("orders", read_queue_nums=4)
        served.store.create_topic("hidden", perm=2)
        answers = ask(
            served,
            pull(0, "nothing"),
            pull(0, "hidden"),
            pull(0, queue=4),
            pull(0, sysFlag="0"),
            pull(0, expressionType="SQL92", subscription="a > 1"),
            pull(0, consumerGroup="no group!"),
            request(RequestCode.PULL_MESSAGE),
            request(9999),
        )
        assert [(each.code, (each.remark or "").split("\n")[0][:40]) for each in answers] == [
            (17, "topic[nothing] not exist, apply first pl"),
            (16, "the topic[hidden] pulling message is for"),
            (1, "queueId[4] is illegal, topic:[orders] to"),
            (24, "the consumer's group info not exist"),
            (1, "The broker does not support consumer to "),
            (26, "subscription group [no group!] does not "),
            (1, "the request has no field consumerGroup"),
            (3, " request type 9999 not supported"),
        ]


async def _held(client: RemotingClient, *pulls: Command) -> list[asyncio.Task[Command]]:
    """Send pulls that wait, and return when the broker has them."""
    tasks = [asyncio.create_task(client.ask(each, _LONG)) for each in pulls]
    await asyncio.sleep(0)
    # It is handled after them: one thread does all of these, in order.
    await client.ask(pull(0, "orders", queue=3), _LONG)
    assert not any(task.done() for task in tasks)
    return tasks


@pytest.mark.parametrize("how", ["send", "put", "commit"])
def test_a_message_wakes_the_pull_that_waits_for_it(tmp_path: Path, how: str) -> None:
    """However it comes: from a producer, from Spark's clients, or with a batch of Spark."""
    with broker(tmp_path / "store") as served:
        served.store.create_topic("orders", read_queue_nums=8)
        served.store.create_topic("bills", read_queue_nums=8)

        async def work(client: RemotingClient) -> Command:
            (waiting,) = await _held(client, pull(0, **_HOLD))
            begin = asyncio.get_running_loop().time()
            if how == "send":
                await client.ask(message(b"woken"), _LONG)
            elif how == "put":
                await asyncio.to_thread(served.store.put, four_messages())
            else:
                await asyncio.to_thread(commit_batch, served.store, 1)
            answer = await waiting
            assert asyncio.get_running_loop().time() - begin < 15  # it has not waited to its end
            return answer

        answer = run(served, work)
        assert (answer.code, answer.remark) == (0, "FOUND")
        assert records_in(answer.body)


def test_a_pull_waits_for_messages_with_its_tag(tmp_path: Path) -> None:
    with broker(tmp_path / "store") as served:
        served.store.create_topic("orders", read_queue_nums=4)

        async def work(client: RemotingClient) -> Command:
            (waiting,) = await _held(client, pull(0, subscription="wanted", **_HOLD))
            for tag in ("other", "another"):
                await client.ask(message(b"x", i=f"TAGS\x01{tag}"), _LONG)
            await asyncio.to_thread(served.store.flush)
            await client.ask(pull(0, queue=3), _LONG)
            assert not waiting.done()
            await client.ask(message(b"here", i="TAGS\x01wanted"), _LONG)
            return await waiting

        answer = run(served, work)
        assert (answer.code, number(answer, "nextBeginOffset")) == (0, 3)
        assert len(records_in(answer.body)) == 1


def test_each_message_wakes_those_that_want_its_tag(tmp_path: Path) -> None:
    tags = [f"tag{n}" for n in range(40)]
    with broker(tmp_path / "store") as served:
        served.store.create_topic("orders", read_queue_nums=4)

        async def work(client: RemotingClient) -> None:
            asked = [pull(0, subscription=f"{tag} || common", **_HOLD) for tag in tags]
            waiting = await _held(client, *asked)
            for n, tag in enumerate(tags[:20]):
                await client.ask(message(b"%d" % n, i=f"TAGS\x01{tag}"), _LONG)
                answer = await waiting[n]
                assert (answer.code, number(answer, "nextBeginOffset")) == (0, n + 1)
                assert [each[-len(tag) - 6 :] for each in records_in(answer.body)]
                assert len(records_in(answer.body)) == 1
            assert not any(task.done() for task in waiting[20:])
            await client.ask(message(b"all", i="TAGS\x01common"), _LONG)
            answers = await asyncio.gather(*waiting[20:])
            assert {(each.code, number(each, "nextBeginOffset")) for each in answers} == {(0, 21)}
            assert {len(records_in(each.body)) for each in answers} == {1}

        run(served, work)


def test_a_pull_that_nothing_has_woken_goes_on_behind_what_was_not_for_it(tmp_path: Path) -> None:
    with broker(tmp_path / "store") as served:
        served.store.create_topic("orders", read_queue_nums=4)

        async def until_the_end() -> Command:
            async with await RemotingClient.connect(served.address, seconds=_LONG) as client:
                (waiting,) = await _held(client, pull(0, subscription="nobody", **_HOLD))
                for tag in ("a", "b", "a"):
                    await client.ask(message(b"x", i=f"TAGS\x01{tag}"), _LONG)
                await asyncio.to_thread(served.store.flush)
                await client.ask(pull(0, queue=3), _LONG)
                assert not waiting.done()
                sent.set()
                return await waiting

        sent, answers = Event(), list[Command]()
        thread = Thread(target=lambda: answers.append(asyncio.run(until_the_end())))
        thread.start()
        assert sent.wait(_LONG)
    thread.join(_LONG)
    assert [(each.code, number(each, "nextBeginOffset")) for each in answers] == [(19, 3)]


@pytest.mark.threat("What one client can do to another")
def test_a_consumer_whose_pulls_fill_the_queue_makes_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, asked = 10, 200
    pulling = "rmqstore_spark.broker.faces.remoting.lanes.pulling"
    monkeypatch.setattr(f"{pulling}._MOST_WAITING", most)
    monkeypatch.setattr(f"{pulling}._LOOK_SECONDS", 3600.0)  # the thread waits with a pull alone
    every = instances_of(monkeypatch, Consuming)
    handled, handle = list[object](), Consuming.handle

    def noted(consuming: Consuming, jobs: Sequence[Any]) -> None:
        handled.append(jobs)
        handle(consuming, jobs)
        handled.remove(jobs)

    monkeypatch.setattr(Consuming, "handle", noted)
    with broker(tmp_path / "store") as served:
        send(served, "a")
        assert [each.code for each in ask(served, pull(0))] == [0]
        (consuming,) = every

        async def work(greedy: RemotingClient) -> None:
            with consuming._at_work:  # a thread reads from a slow disk
                pulls = [asyncio.create_task(greedy.ask(pull(0), _LONG))]
                await asyncio.to_thread(eventually, lambda: handled)
                pulls += [asyncio.create_task(greedy.ask(pull(0), _LONG)) for _ in range(asked)]
                await asyncio.wait(pulls, return_when=asyncio.FIRST_COMPLETED)
                other = await RemotingClient.connect(served.address, seconds=_LONG)
                theirs = asyncio.create_task(other.ask(pull(0), _LONG))
                await other.ask(message(b"", "another"), _LONG)  # handled after the pull
                assert len(consuming) == most
            assert (await theirs).code == 0
            codes = {(await each).code for each in pulls}
            assert codes == {0, ResponseCode.SYSTEM_BUSY}
            other.close()

        run(served, work)


def test_too_many_pulls_for_a_queue_are_not_held(tmp_path: Path) -> None:
    """They are answered at once: each that waits costs something with every message."""
    with broker(tmp_path / "store") as served:
        served.store.create_topic("orders", read_queue_nums=4)

        async def work(client: RemotingClient) -> None:
            held = await _held(client, *(pull(0, subscription="x", **_HOLD) for _ in range(64)))
            answer = await client.ask(pull(0, subscription="x", **_HOLD), _LONG)
            assert (answer.code, answer.remark) == (19, "NO_MESSAGE_IN_QUEUE")
            # Other queues, and other connections, are not concerned.
            (other,) = await _held(client, pull(0, queue=1, **_HOLD))
            second = await RemotingClient.connect(served.address, seconds=_LONG)
            (theirs,) = await _held(second, pull(0, subscription="x", **_HOLD))
            await client.ask(message(b"here", i="TAGS\x01x"), _LONG)
            answers = await asyncio.gather(*held, theirs)
            assert {each.code for each in answers} == {0}
            assert not other.done()
            # There is room again.
            await _held(client, pull(1, subscription="x", **_HOLD))
            second.close()
            other.cancel()

        run(served, work)


def test_a_pull_is_answered_when_its_time_is_over(tmp_path: Path) -> None:
    with broker(tmp_path / "store") as served:
        served.store.create_topic("orders", read_queue_nums=4)
        send(served, "a")
        (answer,) = ask(served, pull(1, sysFlag="6", suspendTimeoutMillis="300"))
        assert (answer.code, answer.remark) == (19, "OFFSET_OVERFLOW_ONE")
        assert number(answer, "nextBeginOffset") == 1


def test_waiting_pulls_end_with_their_connection_and_with_the_broker(tmp_path: Path) -> None:
    with broker(tmp_path / "store") as served:
        served.store.create_topic("orders", read_queue_nums=4)

        async def vanish(client: RemotingClient) -> None:
            for task in await _held(client, *(pull(0, **_HOLD) for _ in range(50))):
                task.cancel()

        run(served, vanish)
        send(served, "a")  # nobody waits any more
        waiting = asyncio.new_event_loop()

        async def until_the_end() -> Command:
            async with await RemotingClient.connect(served.address, seconds=_LONG) as client:
                (task,) = await _held(client, pull(1, **_HOLD))
                ended.set()
                return await task

        ended, answers = Event(), []
        thread = Thread(target=lambda: answers.append(waiting.run_until_complete(until_the_end())))
        thread.start()
        assert ended.wait(_LONG)
    thread.join(_LONG)
    waiting.close()
    assert [answer.code for answer in answers] == [19]


def test_progress_is_served_and_saved(tmp_path: Path) -> None:
    path = tmp_path / "store"
    where = {"consumerGroup": "consumers", "topic": "orders", "queueId": 0}
    with broker(path) as served:
        send(served, "a", "b", "c")
        answers = ask(
            served,
            request(RequestCode.QUERY_CONSUMER_OFFSET, **where),
            request(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=2, **where),
            request(RequestCode.QUERY_CONSUMER_OFFSET, **where),
            request(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=-1, **where),
            request(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=1, **where),
            request(RequestCode.QUERY_CONSUMER_OFFSET, **where),
            pull(3, sysFlag="5", commitOffset="3"),
            request(RequestCode.QUERY_CONSUMER_OFFSET, **where),
            request(RequestCode.UPDATE_CONSUMER_OFFSET, **{**where, "queueId": 8}, commitOffset=1),
            request(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                **{**where, "consumerGroup": "CID_RMQ_SYS_TRANS"},
                commitOffset=1,
            ),
            request(RequestCode.UPDATE_CONSUMER_OFFSET, **{**where, "topic": "x"}, commitOffset=1),
        )
        offsets = [each.ext["offset"] for each in answers if "offset" in each.ext]
        assert offsets == ["0", "2", "1", "3"]
        assert answers[-1].code == 0
        # Spark's progress and that of RocketMQ's consumers are one table.
        assert served.store.commit_offsets("spark", {"orders": {0: 2}}) == 1
        spark = request(RequestCode.QUERY_CONSUMER_OFFSET, **{**where, "consumerGroup": "spark"})
        assert ask(served, spark)[0].ext["offset"] == "2"
    saved = parse_fastjson((path / "config" / "consumerOffset.json").read_text())["offsetTable"]
    assert saved == {"orders@consumers": {"0": 3}, "orders@spark": {"0": 2}}


def test_offsets_of_queues(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with broker(path) as served:
        send(served, "a", "b", "c")
        with Store.open(path) as store:
            times = [
                int(row["storeTimestamp"].timestamp() * 1000)
                for part in store.scan()
                for row in part.to_pylist()
            ]
        where = {"topic": "orders", "queueId": 0}
        answers = ask(
            served,
            request(RequestCode.GET_MAX_OFFSET, **where),
            request(RequestCode.GET_MIN_OFFSET, **where),
            request(RequestCode.GET_MAX_OFFSET, topic="nothing", queueId=0),
            request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=0, **where),
            request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=1 << 50, **where),
            request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=1, topic="x", queueId=0),
            request(RequestCode.GET_EARLIEST_MSG_STORETIME, **where),
            request(RequestCode.GET_EARLIEST_MSG_STORETIME, topic="nothing", queueId=0),
        )
        offsets = [each.ext.get("offset") for each in answers[:6]]
        assert offsets == ["3", "0", "0", "0", "2", "0"]
        assert abs(int(answers[6].ext["timestamp"]) - times[0]) <= 1
        assert answers[7].ext["timestamp"] == "-1"


def test_members_of_a_group_are_told_of_each_other(tmp_path: Path) -> None:
    members = request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="consumers")

    async def work(served: Served) -> None:
        ears = Heard()
        one = await RemotingClient.connect(served.address, service=ears, seconds=_LONG)
        two = await RemotingClient.connect(served.address, seconds=_LONG)
        assert (await one.ask(members, _LONG)).code == ResponseCode.SYSTEM_ERROR
        await one.ask_for(heartbeat("one", {"orders": "a"}), _LONG)
        assert "%RETRY%consumers" in served.store.topics
        await two.ask_for(heartbeat("two", {"orders": "a"}), _LONG)
        body = (await one.ask_for(members, _LONG)).body
        assert json.loads(body) == {"consumerIdList": ["one", "two"]}

        async def notices(count: int) -> None:
            while len(ears.told) < count:
                ears.has_more.clear()
                await asyncio.wait_for(ears.has_more.wait(), _LONG)
            assert [each.code for each in ears.told] == [40] * count
            assert all(each.ext == {"consumerGroup": "consumers"} for each in ears.told)

        await notices(2)
        await two.ask_for(heartbeat("two", {"orders": "a"}), _LONG)  # nothing new
        two.close()
        await notices(3)
        three = await RemotingClient.connect(served.address, seconds=_LONG)
        await three.ask_for(heartbeat("three", {"orders": "a"}), _LONG)
        await notices(4)
        leaving = {"clientID": "three", "consumerGroup": "consumers", "producerGroup": ""}
        await three.ask_for(request(RequestCode.UNREGISTER_CLIENT, **leaving), _LONG)
        await notices(5)
        assert json.loads((await one.ask_for(members, _LONG)).body)["consumerIdList"] == ["one"]
        # A pull without an expression takes that of the heartbeat.
        await one.ask_for(message(b"x", i="TAGS\x01b"), _LONG)
        await one.ask_for(message(b"y", i="TAGS\x01a"), _LONG)
        await asyncio.to_thread(served.store.flush)
        found = await one.ask(pull(0, sysFlag="0", subscription=""), _LONG)
        assert len(records_in(found.body)) == 1
        assert (await one.ask(pull(0, sysFlag="0", subVersion="9"), _LONG)).code == 25
        one.close()
        three.close()

    with broker(tmp_path / "store") as served:
        served.store.create_topic("orders", read_queue_nums=4)
        asyncio.run(work(served))


def test_heartbeats_of_all_clients_are_read(tmp_path: Path) -> None:
    told = {
        "clientID": "c++",
        "consumerDataSet": [
            {
                "groupName": "g", "consumeFromWhere": 0, "consumeType": 1, "messageModel": 1,
                "subscriptionDataSet": [
                    {"topic": "orders", "subString": "a||b", "subVersion": "1790000000000",
                     "codeSet": [0, 0]}
                ],
            },
            {"groupName": "pulling", "consumeFromWhere": 4, "consumeType": 0, "messageModel": 0},
        ],
    }  # fmt: skip
    good = Command(RequestCode.HEART_BEAT, body=json.dumps(told).encode() + b"\n")
    bad = [
        b"", b"[]", b"{}", b'{"clientID":7}', b'{"clientID":"c","consumerDataSet":7}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"no group!"}]}', b"{" * 100_000,
        b'{"clientID":"c"}' + b" " * (1 << 20),
    ]  # fmt: skip
    with broker(tmp_path / "store") as served:
        answers = ask(
            served,
            good,
            *(
                request(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=each)
                for each in ("g", "pulling")
            ),
            *(Command(RequestCode.HEART_BEAT, body=each) for each in bad),
        )
        assert [answer.code for answer in answers] == [0] * 3 + [1] * len(bad)
    shown = [json.loads(answer.body) for answer in answers[1:3]]
    kinds = [
        (each["consumeFromWhere"], each["consumeType"], each["messageModel"]) for each in shown
    ]
    assert kinds == [
        ("CONSUME_FROM_LAST_OFFSET", "CONSUME_PASSIVELY", "CLUSTERING"),
        ("CONSUME_FROM_FIRST_OFFSET", "CONSUME_ACTIVELY", "BROADCASTING"),
    ]
    assert shown[0]["subscriptionTable"]["orders"]["subVersion"] == 1790000000000
    assert shown[1]["subscriptionTable"] == {}


def test_a_subscription_counts_by_its_tags_and_not_by_the_codes_that_cpp_sends(
    tmp_path: Path,
) -> None:
    told = {
        "clientID": "c++",
        "consumerDataSet": [
            {
                "groupName": "consumers",
                "consumeType": 1,
                "subscriptionDataSet": [
                    {"topic": "orders", "subString": "a||b", "subVersion": "1", "codeSet": [0, 0]}
                ],
            }
        ],
    }

    async def work(address: str) -> Command:
        async with await RemotingClient.connect(address, seconds=_LONG) as client:
            await client.ask_for(Command(RequestCode.HEART_BEAT, body=json.dumps(told).encode()))
            for tag in ("c", "b", ""):
                await client.ask_for(message(tag.encode(), i=f"TAGS\x01{tag}"), _LONG)
            by_heartbeat = pull(0, sysFlag="2", subscription="", subVersion="1")
            return await client.ask_for(by_heartbeat, _LONG)

    with broker(tmp_path / "store") as served:
        answer = asyncio.run(work(served.address))
    (record,) = records_in(answer.body)
    assert b"TAGS\x01b" in record


def test_a_group_that_is_refused_is_refused_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def beat(*groups: str, producers: tuple[str, ...] = ()) -> Command:
        consumers = [
            {"groupName": each, "subscriptionDataSet": [{"topic": "orders", "subString": "*"}]}
            for each in groups
        ]
        told = {
            "clientID": "one", "consumerDataSet": consumers,
            "producerDataSet": [{"groupName": each} for each in producers],
        }  # fmt: skip
        return Command(RequestCode.HEART_BEAT, body=json.dumps(told).encode())

    def members(group: str) -> Command:
        return request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)

    path = tmp_path / "store"
    with broker(path) as served:
        served.store.create_topic("orders", read_queue_nums=4)
        assert ask(served, heartbeat("one", {"orders": "*"}, "known"))[0].code == 0
    with broker(path, auto_create_subscription_group=False) as served:
        answers = ask(
            served,
            beat("first", "known", "last", producers=("pg",)),
            members("known"),
            members("first"),
            request(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="pg"),
            beat("first", producers=("pg",)),
            beat("first", "last"),
            pull(0, consumerGroup="first"),
        )
        assert [each.code for each in answers] == [0, 0, 1, 0, 0, 26, 26]
        assert answers[0].remark == answers[5].remark
        assert "[first] does not exist" in (answers[0].remark or "")
        told = [each for each in caplog.messages if "is refused" in each]
        assert [line.split(" of ")[0] for line in told] == ["The group first", "The group last"]


def test_a_group_without_room_leaves_the_others_theirs(tmp_path: Path) -> None:
    """The subscriptions of all groups have 16 Mi characters together."""
    large = {f"topic{n}": "x" * 65_000 for n in range(14)}

    def beat(**groups: dict[str, str]) -> Command:
        told = [
            {
                "groupName": group,
                "subscriptionDataSet": [
                    {"topic": topic, "subString": text, "expressionType": "SQL92"}
                    for topic, text in topics.items()
                ],
            }
            for group, topics in groups.items()
        ]  # fmt: skip
        body = {"clientID": "one", "consumerDataSet": told}
        return Command(RequestCode.HEART_BEAT, body=json.dumps(body).encode())

    def members(group: str) -> Command:
        return request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)

    with broker(tmp_path / "store") as served:
        answers = ask(
            served,
            *(beat(**{f"first{n}": large}) for n in range(18)),
            beat(second=large, third={"orders": "*"}),
            beat(second=large),
            members("first17"),
            members("second"),
            members("third"),
            request(RequestCode.UNREGISTER_CLIENT, consumerGroup="first17"),
            beat(first16={"orders": "*"}),
            beat(second=large),
            beat(fourth=large),
            beat(fifth=large),
        )
        codes = [each.code for each in answers]
        busy = ResponseCode.SYSTEM_BUSY
        assert codes == [0] * 18 + [0, busy, 0, 1, 0] + [0, 0, 0, 0, busy]
        assert answers[18].remark == "the subscriptions of all groups are too long"


def test_queues_are_locked_for_one_consumer(tmp_path: Path) -> None:
    def lock(client: str, *queues: int, code: int = RequestCode.LOCK_BATCH_MQ) -> Command:
        asked = [{"brokerName": "broker-a", "queueId": n, "topic": "orders"} for n in queues]
        told = {"clientId": client, "consumerGroup": "g", "mqSet": asked}
        return Command(code, body=json.dumps(told).encode())

    with broker(tmp_path / "store") as served:
        served.store.create_topic("orders", read_queue_nums=4)
        answers = ask(
            served,
            lock("one", 0, 1),
            lock("two", 1, 2, 4),
            lock("one", 1, code=RequestCode.UNLOCK_BATCH_MQ),
            lock("two", 1),
        )
        held = [
            sorted(queue["queueId"] for queue in json.loads(each.body)["lockOKMQSet"])
            for each in answers
            if each.body
        ]
        assert held == [[0, 1], [2], [1]]


def test_bodies_that_the_event_loop_would_parse_are_bounded(tmp_path: Path) -> None:
    codes = (41, 42, RequestCode.CHECK_CLIENT_CONFIG)
    with broker(tmp_path / "store") as served:
        for answer in ask(served, *(Command(code, body=b" " * (5 << 20)) for code in codes)):
            assert answer.code == 1
            assert "has at most 4194304 bytes, this one has 5242880" in (answer.remark or "")


def test_messages_are_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "store"
    back = {"group": "consumers", "delayLevel": 0}
    with broker(path) as served:
        (sent,) = ask(served, message(b"hard", i="TAGS\x01t\x02KEYS\x01k"))
        place = int(sent.ext["msgId"][16:], 16)
        code = RequestCode.CONSUMER_SEND_MSG_BACK
        again, dead, by_count, gone, nothing = ask(
            served,
            request(code, offset=place, **back),
            request(code, offset=place, group="consumers", delayLevel=-1),
            request(code, offset=place, maxReconsumeTimes=0, **back),
            request(code, offset=place + 1, **back),
            request(code, offset=1 << 40, **back),
        )
        assert [each.code for each in (again, dead, by_count)] == [0, 0, 0]
        assert (gone.code, gone.remark) == (1, f"look message by offset failed, {place + 1}")
        assert nothing.code == 1
        served.store.flush()
        queues = served.store.stats()["queues"]
        assert queues["SCHEDULE_TOPIC_XXXX"] == {"2": [0, 1]}
        assert queues["%DLQ%consumers"] == {"0": [0, 2]}
    with Store.open(path) as store:
        rows = [row for part in store.scan() for row in part.to_pylist()]
    waiting, given_up = rows[1], rows[2]
    assert given_up["body"] == b"hard"
    assert given_up["reconsumeTimes"] == waiting["reconsumeTimes"] == 1
    assert given_up["bornHost"] == rows[0]["bornHost"]
    assert given_up["bornTimestamp"] == rows[0]["bornTimestamp"]
    properties = dict(given_up["properties"])
    assert properties["RETRY_TOPIC"] == "orders"
    assert properties["ORIGIN_MESSAGE_ID"] == sent.ext["msgId"]
    assert (properties["TAGS"], properties["KEYS"]) == ("t", "k")
    assert dict(waiting["properties"])["REAL_TOPIC"] == "%RETRY%consumers"


def test_a_held_pull_of_another_thread_is_not_forgotten(tmp_path: Path) -> None:
    """Messages that come while pulls are being held wake all of them."""
    with broker(tmp_path / "store") as served:
        served.store.create_topic("orders", read_queue_nums=4)

        async def work(client: RemotingClient) -> list[Command]:
            at = 0
            answers = []
            for _ in range(100):
                waiting = asyncio.create_task(client.ask(pull(at, **_HOLD), _LONG))
                sent = asyncio.create_task(client.ask(message(b"x"), _LONG))
                answers.append(await waiting)
                await sent
                at = number(answers[-1], "nextBeginOffset")
            return answers

        assert all(answer.code == 0 for answer in run(served, work))
        assert eventually(lambda: served.store.stats()["queues"]["orders"]["0"][1] == 100)


def test_a_slave_is_read_and_accepts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with broker(path) as served:
        send(served, "a", "b")
    where = {"consumerGroup": "consumers", "topic": "orders", "queueId": 0}
    with broker(path, broker_role="SLAVE", broker_id=1) as served:
        found, past, sent, beat, _, progress, new = ask(
            served,
            pull(0),
            pull(9),
            message(b"x"),
            heartbeat("client", {"orders": "*"}),
            request(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=1, **where),
            request(RequestCode.QUERY_CONSUMER_OFFSET, **where),
            message(b"x", "new"),
        )
        assert (found.code, len(records_in(found.body))) == (0, 2)
        # What is past its end may only not have come yet.
        assert (past.code, number(past, "nextBeginOffset")) == (20, 9)
        assert (sent.code, beat.code) == (ResponseCode.SERVICE_NOT_AVAILABLE, 0)
        assert progress.ext["offset"] == "0"
        assert new.code == ResponseCode.TOPIC_NOT_EXIST
    assert not (path / "config" / "consumerOffset.json").exists()
