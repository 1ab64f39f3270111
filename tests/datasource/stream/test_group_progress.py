"""The progress of a consumer group: wherever it can be recorded it is, and nowhere does it matter.

What brokers answer is that of RocketMQ 5.3.3 (ConsumerManageProcessor, ClientManageProcessor).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.client.brokers.server_group import Addresses, ServerGroup
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.remoting.access.identity import ClientIdentity
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.server.stores.sidecar import Sidecar, StorePlace
from tests.broker.broker import Served, broker, name_server
from tests.client.tampering import tampering
from tests.datasource.driving import Stream
from tests.namesrv.registering import registration
from tests.support.messages.blocks import encoded_traffic
from tests.support.messages.traffic import Traffic
from tests.support.processes.serving import served, server_of, serving_brokers_clients

GROUP = "lake"
TOPIC = "orders"
QUEUES = 3
MISSED = "could not be recorded"
HIDDEN = "RocketMQ's tools do not show"


def put(store: StoreWriter, count: int, seed: int) -> None:
    for block in encoded_traffic(Traffic(count, topics={TOPIC: QUEUES}, seed=seed)):
        assert store.put(block).ok
    store.flush()


def recorded(store: StoreWriter) -> int:
    """How many messages the group has consumed."""
    offsets = (store.consumer_offsets.get(GROUP, TOPIC, number) for number in range(QUEUES))
    return sum(max(0, offset) for offset in offsets)


class Between:
    """What stands before a broker: while the test sets `refusal`, no offsets are recorded.

    Attributes:
        refusal: gets a request for that, and returns the code of the answer; 0 lets it through,
            and None ends the connection.
        has_members: whether it answers that the group has consumers.
        asked: the codes of the requests that came.
        accepted: the last offset of each queue that was let through.
    """

    def __init__(self) -> None:
        self.refusal: Callable[[Command], int | None] = lambda _: 0
        self.has_members = False
        self.asked: list[int] = []
        self.accepted: dict[str, int] = {}

    def __call__(self, asked: Command, answer: Command) -> Command | None:
        self.asked.append(asked.code)
        if asked.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP and self.has_members:
            return answer.answer(ResponseCode.SUCCESS, body=b'{"consumerIdList":["1.2.3.4@1"]}')
        if asked.code != RequestCode.UPDATE_CONSUMER_OFFSET:
            return answer
        code = self.refusal(asked)
        if code is None:
            return None
        if code:
            return answer.answer(code, "the broker does not want it")
        self.accepted[asked.ext["queueId"]] = int(asked.ext["commitOffset"])
        return answer


class Followed:
    """A stream that pulls from a broker, and records its progress there."""

    def __init__(self, at: Served, between: Between, stream: Stream) -> None:
        self.store = at.store
        self.between = between
        self._stream = stream
        self._seed = 0

    def batch(self, count: int = 30, seconds: float = 60.0) -> int:
        """Store messages, run a micro-batch some time later, and have it recorded."""
        self._seed += 1
        put(self.store, count, self._seed)
        self._stream.clock.sleep(seconds)
        rows = self._stream.next_batch()
        assert self._stream.next_batch() is None  # Spark has asked what comes after it
        return len(rows or [])


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Callable[..., Followed]]:
    """Give `follow(answer_within, **settings)`: a broker, and a stream that pulls from it."""
    with ExitStack() as running:

        def start(answer_within: str = "20s", **settings: Any) -> Followed:
            at = running.enter_context(broker(tmp_path / "store", **settings))
            at.store.create_topic(TOPIC, write_queue_nums=QUEUES)
            servers = running.enter_context(name_server(tmp_path))
            between = Between()
            address = running.enter_context(tampering(at.address, between))
            told = Addresses((servers,), has_master=False)
            asked = ServerGroup(told, "The name server", 20, 20, ClientIdentity())
            running.enter_context(closing(asked))  # the broker is registered until then
            asked.ask(registration([TOPIC], name="broker-a", address=address))
            stream = Stream(
                "",
                namesrvAddr=servers,
                subscribe=TOPIC,
                startingOffsets="earliest",
                commitGroup=GROUP,
                replicaTimeout=answer_within,
            )
            running.callback(stream.reader.stop)
            return Followed(at, between, stream)

        yield start


def warnings(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [
        one.getMessage()
        for one in caplog.records
        if one.levelno == logging.WARNING and text in one.getMessage()
    ]


def test_a_broker_that_records_nothing_of_unknown_groups_is_told_of_the_group_first(
    follow: Callable[..., Followed], caplog: pytest.LogCaptureFixture
) -> None:
    followed = follow()

    def refusal(asked: Command) -> int:
        is_known = followed.store.groups.get(asked.ext["consumerGroup"]) is not None
        return 0 if is_known else ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    followed.between.refusal = refusal
    assert followed.batch() == 30
    assert recorded(followed.store) == 30
    assert followed.batch() == 30
    assert recorded(followed.store) == 60
    assert "%RETRY%" + GROUP in followed.store.topics  # by which mqadmin finds a group
    asked = followed.between.asked
    assert asked.count(RequestCode.HEART_BEAT) == asked.count(RequestCode.UNREGISTER_CLIENT) == 1
    followed.store.groups.delete(GROUP)
    assert followed.batch() == 30
    assert recorded(followed.store) == 90
    assert not warnings(caplog, MISSED)
    assert not warnings(caplog, HIDDEN)


def test_a_group_that_has_consumers_is_not_joined(follow: Callable[..., Followed]) -> None:
    followed = follow()
    followed.between.has_members = True
    assert followed.batch() == 30
    assert recorded(followed.store) == 30
    assert RequestCode.HEART_BEAT not in followed.between.asked


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        4711,
        None,
    ],
)
def test_progress_that_a_broker_refuses_is_told_and_stops_no_query(
    follow: Callable[..., Followed], caplog: pytest.LogCaptureFixture, code: int | None
) -> None:
    followed = follow("5s")  # so long it asks one that is busy or silent
    followed.between.refusal = lambda _: code
    assert [followed.batch() for _ in range(3)] == [30, 30, 30]
    assert not followed.between.accepted
    (told,) = warnings(caplog, MISSED)
    assert GROUP in told
    if code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
        assert "mqadmin updateSubGroup -g lake" in told
    caplog.clear()
    assert followed.batch(seconds=700) == 30  # told again, but not at every micro-batch
    assert len(warnings(caplog, MISSED)) == 1
    followed.between.refusal = lambda _: 0
    assert followed.batch() == 30
    assert sum(followed.between.accepted.values()) == 150
    assert warnings(caplog, "is recorded again")


def test_a_broker_that_creates_no_groups_is_read_and_the_remedy_told(
    follow: Callable[..., Followed], caplog: pytest.LogCaptureFixture
) -> None:
    followed = follow(auto_create_subscription_group=False)
    assert [followed.batch(), followed.batch()] == [30, 30]
    assert recorded(followed.store) == 60  # as 4.9.8 records it
    (told,) = warnings(caplog, HIDDEN)
    assert "mqadmin updateSubGroup -g lake" in told


def test_a_store_process_that_cannot_write_the_progress_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path / "store") as here:
        here.store.create_topic(TOPIC, write_queue_nums=QUEUES)
        put(here.store, 30, 1)
        stream = Stream("", endpoint=here.endpoint, startingOffsets="earliest", commitGroup=GROUP)

        def full(*_: object) -> int:
            raise StoreWriteError("No space is left on the device.")

        with monkeypatch.context() as patched:
            patched.setattr(here.store.consumer_offsets, "commit", full)
            assert len(stream.next_batch() or []) == 30
            assert stream.next_batch() is None
        (told,) = warnings(caplog, MISSED)
        assert "No space" in told
        put(here.store, 30, 2)
        stream.clock.sleep(60)
        assert len(stream.next_batch() or []) == 30
        assert stream.next_batch() is None
        assert recorded(here.store) == 60
        assert "%RETRY%" + GROUP not in here.store.topics  # it serves none of RocketMQ's clients
        stream.reader.stop()


def test_a_store_process_makes_the_group_known_to_rocketmqs_tools(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        served(tmp_path / "store", clients="all") as here,
        serving_brokers_clients(here),
    ):
        here.store.create_topic(TOPIC, write_queue_nums=QUEUES)
        put(here.store, 30, 1)
        stream = Stream("", endpoint=here.endpoint, startingOffsets="earliest", commitGroup=GROUP)
        assert len(stream.next_batch() or []) == 30
        assert stream.next_batch() is None
        stream.reader.stop()
        assert recorded(here.store) == 30
        assert "%RETRY%" + GROUP in here.store.topics
        assert here.store.groups.get(GROUP) is not None
        assert not caplog.messages


def test_a_sidecar_that_records_nothing_is_read(
    golden: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    path = golden("live") / "store"
    expected = len(Stream(path, startingOffsets="earliest").next_batch() or [])
    assert expected
    config = StoreConfig(listen_port=0)
    place = StorePlace("live", str(path))
    stores = Sidecar([place], config, spares_page_cache=True, max_read_rate=None).stores
    server = server_of(stores, config)
    with closing(server):
        endpoint = f"{server.endpoints[0]}#live"
        stream = Stream("", endpoint=endpoint, startingOffsets="earliest", commitGroup=GROUP)
        assert len(stream.next_batch() or []) == expected
        assert stream.next_batch() is None
        stream.reader.stop()
    (told,) = warnings(caplog, MISSED)
    assert "read-only" in told
