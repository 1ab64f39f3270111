"""Topics and groups that many clients name at once: few writes of files, and others pass by."""

from __future__ import annotations

import asyncio
import json
import selectors
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from rmqstore_spark.broker.core.clients import Clients
from rmqstore_spark.broker.core.refusal import Refusal
from rmqstore_spark.broker.faces.remoting.lanes.worker import Worker
from rmqstore_spark.broker.faces.remoting.membership import NewGroups, read_heartbeat
from rmqstore_spark.engine.tables import config_file
from rmqstore_spark.engine.tables.consumer_offsets import ConsumerOffsets
from rmqstore_spark.engine.tables.topics import TopicConfig, TopicTable
from rmqstore_spark.errors import OptionError, StoreWriteError
from rmqstore_spark.files.durable import replace_file
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import RemotingConnection
from tests.broker.broker import Served, ask, broker, heartbeat, message, pull
from tests.support.instances import instances_of
from tests.support.waiting import PATIENCE, eventually

CLIENTS = 10


@dataclass
class Writes:
    """The writes of configuration files, by name; those of one file wait for `release`."""

    counts: Counter[str]
    waits: threading.Event
    release: threading.Event


@contextmanager
def held(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[Writes]:
    """Count the writes of configuration files, and let the first of one file wait."""
    found = Writes(Counter(), threading.Event(), threading.Event())

    def slow(path: str, data: bytes) -> None:
        file = Path(path).name
        found.counts[file] += 1
        if file == name and not found.waits.is_set():
            found.waits.set()
            assert found.release.wait(PATIENCE)
        replace_file(path, data)

    monkeypatch.setattr(config_file, "replace_file", slow)
    try:
        yield found
    finally:
        found.release.set()


def while_held(
    served: Served,
    writes: Writes,
    requests: Sequence[Command],
    meanwhile: Callable[[RemotingClient], Awaitable[None]],
    has_gathered: Callable[[], bool],
) -> list[Command]:
    """The answers to requests of several clients, of which the first is being written meanwhile.

    Args:
        served: the broker.
        writes: hold the first write.
        requests: the first starts the write; the others are sent when it waits.
        meanwhile: done by another client before the write continues.
        has_gathered: whether all others have arrived.
    """

    async def work() -> list[Command]:
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(
                    await RemotingClient.connect(served.address, seconds=30)
                )
                for _ in range(CLIENTS + 1)
            ]
            first = asyncio.create_task(clients[0].ask(requests[0], 60))
            await asyncio.to_thread(writes.waits.wait, PATIENCE)
            others = [
                asyncio.create_task(clients[n % CLIENTS].ask(request, 60))
                for n, request in enumerate(requests[1:])
            ]
            await asyncio.to_thread(eventually, has_gathered)
            await meanwhile(clients[CLIENTS])
            assert not any(each.done() for each in (first, *others))
            writes.release.set()
            return list(await asyncio.gather(first, *others))

    return asyncio.run(work())


def sending_to(topic: str) -> Callable[[RemotingClient], Awaitable[None]]:
    """What a client does meanwhile that sends to a topic that exists."""

    async def send(client: RemotingClient) -> None:
        for _ in range(5):
            assert (await client.ask(message(b"x", topic), 30)).code == 0

    return send


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[Worker[Any]]:
    """The threads of the brokers that a test runs."""
    return instances_of(monkeypatch, Worker)


def waiting_in(workers: list[Worker[Any]], name: str) -> Callable[[int], bool]:
    """A function that tells whether a thread of the broker has so many jobs left."""

    def has(count: int) -> bool:
        return any(len(each) >= count for each in workers if each._thread.name == name)

    return has


def has_new_groups(makers: list[NewGroups], count: int) -> bool:
    """Whether so many new groups of a broker wait to be created."""
    return any(each._next is not None and len(each._next.groups) >= count for each in makers)


def test_sends_to_new_topics_are_written_together_and_others_pass_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: list[Worker[Any]]
) -> None:
    count = 300
    with broker(tmp_path / "s") as served:
        served.store.create_topic("known", write_queue_nums=1)
    with broker(tmp_path / "s") as served, held(monkeypatch, "topics.json") as writes:
        waiting = waiting_in(workers, "rmqstore-new-topics")
        answers = while_held(
            served, writes, [message(b"%d" % n, f"new-{n}") for n in range(count)],
            sending_to("known"), lambda: waiting(count - 1),
        )  # fmt: skip
        assert {answer.code for answer in answers} == {0}
        assert all(f"new-{n}" in served.store.topics for n in range(count))
        assert writes.counts["topics.json"] == 2


def test_sends_of_a_client_keep_their_order_while_their_topic_is_created(tmp_path: Path) -> None:
    async def work(address: str) -> list[int]:
        async with await RemotingClient.connect(address, seconds=30) as client:
            sends = [
                asyncio.create_task(client.ask_for(message(b"%d" % n, "fresh", 0), 30))
                for n in range(200)
            ]
            return [int((await each).ext["queueOffset"]) for each in sends]

    with broker(tmp_path / "s") as served:
        assert asyncio.run(work(served.address)) == list(range(200))


def test_one_topic_that_cannot_be_created_refuses_no_others(tmp_path: Path) -> None:
    with broker(tmp_path / "s", max_topics=5) as served:
        answers = ask(served.address, *(message(b"x", f"new-{n}") for n in range(8)))
        assert [answer.code for answer in answers] == [0] * 5 + [1] * 3
        assert "maxTopics is 5" in str(answers[-1].remark)


def test_new_groups_of_heartbeats_and_pulls_are_written_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 180
    makers = instances_of(monkeypatch, NewGroups)
    with broker(tmp_path / "s") as served:
        served.store.create_topic("orders", write_queue_nums=1)
        with held(monkeypatch, "topics.json") as writes:
            beats = [heartbeat(f"c{n}", {"orders": "*"}, f"g{n}") for n in range(count)]
            pulls = [pull(0, consumerGroup=f"p{n}", sysFlag="4") for n in range(count)]
            answers = while_held(
                served, writes, [*beats, *pulls],
                sending_to("orders"), lambda: has_new_groups(makers, 2 * count - 1),
            )  # fmt: skip
        assert [answer.code for answer in answers[:count]] == [0] * count
        refused = {ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.SYSTEM_ERROR}
        assert not refused & {answer.code for answer in answers[count:]}
        names = served.store.groups.names()
        assert set(names) == {f"{kind}{n}" for kind in "gp" for n in range(count)}
        assert all(f"%RETRY%g{n}" in served.store.topics for n in range(count))
        assert not any(f"%RETRY%p{n}" in served.store.topics for n in range(count))
        # One for the first, and one for all others.
        assert writes.counts["topics.json"] == 2
        assert writes.counts["subscriptionGroup.json"] == 2


def test_groups_that_cannot_be_written_are_refused_and_created_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(path: str, data: bytes) -> None:
        raise StoreWriteError(f"{path} could not be written: no room.")

    beat = heartbeat("c", {"orders": "*"}, "g")
    with broker(tmp_path / "s") as served:
        served.store.create_topic("orders", write_queue_nums=1)
        monkeypatch.setattr(config_file, "replace_file", failing)
        for request in (beat, pull(0, consumerGroup="g")):
            (answer,) = ask(served.address, request)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "no room" in str(answer.remark)
        assert served.store.groups.names() == []
        assert "%RETRY%g" not in served.store.topics
        monkeypatch.setattr(config_file, "replace_file", replace_file)
        assert ask(served.address, beat)[0].code == 0
        assert served.store.groups.names() == ["g"]


def topic_change(name: str, code: RequestCode) -> Command:
    fields = {"topic": name, "readQueueNums": "2", "writeQueueNums": "2", "perm": "6",
              "order": "false", "topicFilterType": "SINGLE_TAG", "defaultTopic": "TBW102",
              "topicSysFlag": "0"}  # fmt: skip
    return Command(code, fields)


def test_changes_of_administrators_are_written_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: list[Worker[Any]]
) -> None:
    count = 100
    with broker(tmp_path / "s") as served:
        served.store.create_topic("known", write_queue_nums=1)
        waiting, meanwhile = waiting_in(workers, "rmqstore-broker-changes"), sending_to("known")
        made = [topic_change(f"t{n}", RequestCode.UPDATE_AND_CREATE_TOPIC) for n in range(count)]
        with held(monkeypatch, "topics.json") as writes:
            answers = while_held(served, writes, made, meanwhile, lambda: waiting(count - 1))
        assert {answer.code for answer in answers} == {0}
        assert writes.counts["topics.json"] == 2
        assert all(f"t{n}" in served.store.topics for n in range(count))
        for n in range(count):
            assert served.store.consumer_offsets.report("g", f"t{n}", 0, 0)
        gone = [topic_change(f"t{n}", RequestCode.DELETE_TOPIC_IN_BROKER) for n in range(count)]

        async def nothing(_: RemotingClient) -> None:
            """Puts wait for the deletion: it holds the log."""

        with held(monkeypatch, "topics.json") as writes:
            answers = while_held(served, writes, gone, nothing, lambda: waiting(count - 1))
        assert {answer.code for answer in answers} == {0}
        assert writes.counts["topics.json"] == 5  # the first topic, and 32 at once of the others
        assert writes.counts["consumerOffset.json"] <= 5
        assert [topic.name for topic in served.store.topics] == ["known"]
        groups = [
            Command(
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                body=json.dumps({"groupName": f"g{n}"}).encode(),
            )
            for n in range(count)
        ]
        with held(monkeypatch, "subscriptionGroup.json") as writes:
            answers = while_held(served, writes, groups, meanwhile, lambda: waiting(count - 1))
        assert {answer.code for answer in answers} == {0}
        assert writes.counts["subscriptionGroup.json"] == 2
        assert len(served.store.groups.names()) == count


def change_to(number: int) -> Command:
    return topic_change(f"t{number}", RequestCode.UPDATE_AND_CREATE_TOPIC)


def send_to(number: int) -> Command:
    return message(b"x", f"t{number}")


@pytest.mark.threat("What one client can do to another")
@pytest.mark.parametrize(
    ("where", "request_of"),
    [("changing", change_to), ("sending", send_to)],
)
def test_a_client_whose_requests_fill_the_queue_makes_room_for_others(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    request_of: Callable[[int], Command],
) -> None:
    most, asked = 10, 30
    monkeypatch.setattr(f"rmqstore_spark.broker.faces.remoting.lanes.{where}._MOST_WAITING", most)

    async def work(address: str, writes: Writes) -> tuple[list[int], int]:
        async with AsyncExitStack() as stack:
            greedy, other = [
                await stack.enter_async_context(await RemotingClient.connect(address, seconds=30))
                for _ in range(2)
            ]
            first = asyncio.create_task(greedy.ask(request_of(0), 60))
            await asyncio.to_thread(writes.waits.wait, PATIENCE)
            more = [asyncio.create_task(greedy.ask(request_of(n), 60)) for n in range(1, asked)]
            _, left = await asyncio.wait(more, return_when=asyncio.FIRST_COMPLETED)
            while len(left) > most:
                _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            theirs = asyncio.create_task(other.ask(request_of(asked), 60))
            await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)  # one makes room
            assert not theirs.done()
            writes.release.set()
            answers = await asyncio.gather(first, *more)
            return [answer.code for answer in answers], (await theirs).code

    with (
        broker(tmp_path / "s") as served,
        held(monkeypatch, "topics.json") as writes,
    ):
        codes, theirs = asyncio.run(work(served.address, writes))
        assert theirs == 0
        assert Counter(codes) == {0: most, ResponseCode.SYSTEM_BUSY: asked - most}


def test_a_change_that_is_refused_leaves_those_beside_it(tmp_path: Path) -> None:
    good = topic_change("good", RequestCode.UPDATE_AND_CREATE_TOPIC)
    bad = topic_change("TBW102", RequestCode.UPDATE_AND_CREATE_TOPIC)
    gone = topic_change("never", RequestCode.DELETE_TOPIC_IN_BROKER)

    async def work(address: str) -> list[Command]:
        async with await RemotingClient.connect(address, seconds=30) as client:
            asked = (client.ask(each, 30) for each in (bad, good, gone))
            return list(await asyncio.gather(*asked))

    with broker(tmp_path / "s") as served:
        assert [answer.code for answer in asyncio.run(work(served.address))] == [1, 0, 0]
        assert "good" in served.store.topics


def test_threads_that_create_topics_share_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = TopicTable(str(tmp_path), lambda: 1, 31)
    outcomes: dict[str, object] = {}

    def create(name: str) -> None:
        try:
            outcomes[name] = topics.create(name, 1, 1)
        except OptionError as error:
            outcomes[name] = error

    def start(name: str) -> threading.Thread:
        thread = threading.Thread(target=create, args=(name,))
        thread.start()
        return thread

    with held(monkeypatch, "topics.json") as writes:
        threads = [start("first")]
        assert writes.waits.wait(PATIENCE)
        names = [f"t{n}" for n in range(30)]
        threads += [start(name) for name in names]
        eventually(lambda: len(topics._waiting) == 30)
        assert topics.get("t0") is None
        writes.release.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert writes.counts["topics.json"] == 2
    with pytest.raises(OptionError, match="maxTopics is 31"):
        topics.create("one-more", 1, 1)
    assert outcomes == {name: TopicConfig(name, 1, 1) for name in ("first", *names)}
    assert len(TopicTable(str(tmp_path), lambda: 1, 40)) == 31


def test_changes_that_could_not_be_written_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = TopicTable(str(tmp_path), lambda: 1, 40)
    topics.create("old", 1, 1)

    def failing(path: str, data: bytes) -> None:
        raise StoreWriteError(f"{path} could not be written.")

    def change() -> None:
        with topics.together():
            topics.create("new", 1, 1)
            topics.update("new", perm=4)  # it sees what the body has made
            topics.delete(["old"])

    with monkeypatch.context() as patched:
        patched.setattr(config_file, "replace_file", failing)
        with pytest.raises(StoreWriteError):
            change()
    assert [topic.name for topic in topics] == ["old"]
    with topics.together():
        topics.create("new", 1, 1)
        assert "new" not in topics
    assert {topic.name for topic in topics} == {"old", "new"}


class _Peer:
    """A connection that keeps the notices it gets."""

    is_open = True

    def __init__(self) -> None:
        self.told: list[str] = []


class _Leaping(selectors.SelectSelector):
    """Gives its event loop a clock that leaps to the next timer when there is nothing to do.

    For what waits for timers alone: then it takes the same turns on every machine.
    """

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(timeout and 0.0)

    def loop(self) -> asyncio.AbstractEventLoop:
        made = asyncio.SelectorEventLoop(self)
        made.time = lambda: self.now  # type: ignore[method-assign]
        return made


def test_members_that_come_and_go_together_are_told_together() -> None:
    count = 1000
    peers = [_Peer() for _ in range(count)]
    connections = [cast(RemotingConnection, peer) for peer in peers]
    beat = heartbeat("c", {"orders": "*"}, "g")

    async def settled(told: Callable[[], int]) -> None:
        """Wait until no more is told."""
        loop = asyncio.get_running_loop()
        before = -1
        while before != told():
            before = told()
            done = loop.create_future()
            loop.call_later(count * 0.001 * 2, done.set_result, None)
            await done

    async def work() -> None:
        clients = Clients(lambda peer, group: cast(_Peer, peer).told.append(group))

        def told() -> int:
            return sum(len(peer.told) for peer in peers)

        def join(connection: RemotingConnection, name: str) -> None:
            body = beat.body.replace(b'"c"', b'"%s"' % name.encode())
            told = read_heartbeat(Command(beat.code, body=body))
            clients.hear(connection, told, frozenset(), 0.0)

        join(connections[0], "c0")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert peers[0].told == ["g"]  # who comes alone hears of it at once
        for n, connection in enumerate(connections[1:], 1):
            join(connection, f"c{n}")
            await asyncio.sleep(0.001)  # each in a turn of its own
        await settled(told)
        # Each is told after the last has come, and few more than once.
        assert all(peer.told for peer in peers)
        assert told() <= 4 * count
        assert clients.listed("g").names == tuple(f"c{n}" for n in range(count))
        for peer in peers:
            peer.told.clear()
        for connection in connections[1:]:  # their host has crashed
            clients.closed(connection)
        assert clients.listed("g").names == ("c0",)
        await settled(told)
        assert peers[0].told in (["g"], ["g", "g"])
        assert told() == len(peers[0].told)
        clients.closed(connections[0])
        assert clients.group("g") is None
        with pytest.raises(Refusal, match="no consumer for this group, g"):
            clients.listed("g")

    with closing(_Leaping().loop()) as loop:
        loop.run_until_complete(work())


def test_offsets_of_many_topics_are_forgotten_with_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ConsumerOffsets(str(tmp_path), dict)
    for n in range(50):
        assert table.report(f"g{n}", f"t{n}", 0, n)
    table.save()
    with held(monkeypatch, "") as writes:
        table.forget([f"t{n}" for n in range(40)])
        table.forget_groups([f"g{n}" for n in range(40, 49)])
    assert writes.counts["consumerOffset.json"] == 2
    assert table.table() == {"t49@g49": {0: 49}}


def test_the_store_of_a_broker_holds_what_its_clients_made(tmp_path: Path) -> None:
    """After a restart too."""
    with broker(tmp_path / "s") as served:
        answers = ask(served.address, message(b"x", "fresh"), heartbeat("c", {"fresh": "*"}, "g"))
        assert [answer.code for answer in answers] == [0, 0]
    with broker(tmp_path / "s") as served:
        assert served.store.groups.get("g") is not None
        topics: Any = served.store.topics
        assert {"fresh", "%RETRY%g"} <= {topic.name for topic in topics}
