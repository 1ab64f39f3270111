"""A producer's side: messages to brokers that answer, refuse, fail, and come back."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from rmqstore_spark.client.brokers.routes import PublishRoutes
from rmqstore_spark.client.brokers.sending import (
    AvoidedBrokers,
    MessageSender,
    Outgoing,
    OutgoingMessage,
)
from rmqstore_spark.client.brokers.server_group import Addresses, ServerGroup
from rmqstore_spark.errors import RefusedError, ServiceError, TopicNotFoundError
from rmqstore_spark.reader import Store
from rmqstore_spark.remoting.access.identity import ClientIdentity
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import Served, broker, name_server
from tests.client.tampering import Change, tampering
from tests.namesrv.registering import registration, topic
from tests.support.processes.ports import free_port


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with name_server(tmp_path_factory.mktemp("namesrv")) as address:
        yield address


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with broker(tmp_path_factory.mktemp("broker") / "store") as found:
        yield found


class Registrar:
    """Registers brokers, which are known as long as its connection is open."""

    def __init__(self, servers: str) -> None:
        self.asked = ServerGroup(
            Addresses((servers,), has_master=False), "The name server", 20, 20, ClientIdentity()
        )

    def __call__(self, request: Command) -> None:
        assert self.asked.ask(request).command.code == 0


@pytest.fixture(scope="module")
def register(servers: str) -> Iterator[Registrar]:
    made = Registrar(servers)
    with closing(made.asked):
        yield made


@contextmanager
def answering(served: Served, register: Registrar, name: str, change: Change) -> Iterator[None]:
    """A broker with a topic of its own name, some of whose answers are others."""
    served.store.create_topic(name, write_queue_nums=2)
    with tampering(served.address, change) as address:
        register(registration([topic(name, 2)], name=f"of-{name}", address=address))
        yield


def sender(servers: str, retries: int = 3, in_flight: int = 1 << 20) -> closing[MessageSender]:
    routes = PublishRoutes([servers], 20, ClientIdentity())
    return closing(MessageSender(routes, in_flight, 20, retries, ClientIdentity()))


def out(to: str, body: bytes, broker: str = "", queue: int = 0, *, move: bool = False) -> Outgoing:
    return Outgoing(OutgoingMessage(to, body, 1), broker or f"of-{to}", queue, move)


def stored(served: Served, name: str) -> Counter[bytes]:
    served.store.flush()
    with Store.open(served.store.path) as store:
        rows = [row for part in store.scan() for row in part.to_pylist() if row["topic"] == name]
    return Counter(row["body"] for row in rows)


class Answers:
    """Changes the answers to the first requests to send.

    Args:
        codes: what they are answered instead, None for the end of the connection.
    """

    def __init__(self, *codes: int | None) -> None:
        self._codes = list(codes)

    def __call__(self, asked: Command, answer: Command) -> Command | None:
        if asked.code not in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            return answer
        if not self._codes:
            return answer
        code = self._codes.pop(0)
        return None if code is None else asked.answer(code, "as the test wants", answer.ext)


@pytest.mark.parametrize(
    ("codes", "times"),
    [
        ((), 1),
        ((ResponseCode.FLUSH_DISK_TIMEOUT,), 1),
        ((ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE), 1),
        ((ResponseCode.SYSTEM_BUSY,), 2),
        ((ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE), 3),
        ((None,), 2),
    ],
)
def test_what_is_not_known_to_be_stored_is_sent_again(
    served: Served, servers: str, register: Registrar, codes: tuple[int | None, ...], times: int
) -> None:
    name = f"again-{'-'.join(map(str, codes))}"
    with answering(served, register, name, Answers(*codes)), sender(servers) as sending:
        sending.send(out(name, b"first"))
        sending.finish()
        sending.send(out(name, b"second", queue=1))
        sending.finish()
    assert stored(served, name) == {b"first": times, b"second": 1}


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (1, "org.apache.rocketmq.acl.common.AclException: No default permission for topic:T"),
        # RocketMQ 5.3.3, with authenticationEnabled and authorizationEnabled
        (16, "username cannot be null."),
        (16, "check signature failed."),
        (16, "User:lake is not found."),
        (16, "User:lake has no permission to access Topic:T from ::1, no matched policies."),
    ],
)
def test_a_refusal_of_the_account_is_not_tried_again_and_says_what_to_set(
    served: Served, servers: str, register: Registrar, code: int, said: str
) -> None:
    refused = []

    def no_right(asked: Command, answer: Command) -> Command:
        if asked.code != RequestCode.SEND_MESSAGE_V2:
            return answer
        refused.append(asked)
        return asked.answer(code, said)

    with answering(served, register, "closed", no_right), sender(servers) as sending:
        sending.send(out("closed", b"", move=True))
        words = rf"{re.escape(said.rstrip('.'))}\. Set option aclFile"
        with pytest.raises(RefusedError, match=words):
            sending.finish()
    assert len(refused) == 1


@pytest.mark.parametrize("code", [ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_PERMISSION, 999])
def test_what_no_broker_takes_is_refused(
    served: Served, servers: str, register: Registrar, code: int
) -> None:
    name = f"refused-{int(code)}"
    with answering(served, register, name, Answers(code)), sender(servers) as sending:
        sending.send(out(name, b"", move=True))
        with pytest.raises(RefusedError, match=f"The broker of-{name} .*as the test wants"):
            sending.finish()


def test_messages_of_a_queue_keep_their_order_while_other_queues_go_on(
    served: Served, servers: str, register: Registrar
) -> None:
    name = "ordered"
    codes = [None, 0, ResponseCode.SYSTEM_BUSY]
    with answering(served, register, name, Answers(*codes)), sender(servers) as sending:
        for number in range(40):
            sending.send(out(name, b"%d" % number, queue=number % 2))
        sending.finish()
    served.store.flush()
    with Store.open(served.store.path) as store:
        for queue in range(2):
            rows = [
                int(body.as_py())
                for part in store.read(name, queue_id=queue)
                for body in part["body"]
            ]
            # What a broken connection had brought may be stored after it was sent again.
            assert list(dict.fromkeys(rows)) == list(range(queue, 40, 2))
        assert store.queue(name, 0).max_offset + store.queue(name, 1).max_offset > 40


def test_messages_that_may_move_go_to_another_broker(
    served: Served, servers: str, register: Registrar
) -> None:
    name = "moving"
    with answering(served, register, name, Answers()):
        gone = f"127.0.0.1:{free_port()}"
        register(registration([topic(name, 3)], name="gone", address=gone))
        with sender(servers) as sending:
            for number in range(20):
                place = "gone" if number % 2 else "of-moving"
                sending.send(out(name, b"%d" % number, place, move=True))
            sending.finish()
        assert stored(served, name) == {b"%d" % number: 1 for number in range(20)}
        with sender(servers, retries=1) as sending:
            sending.send(out(name, b"stays", broker="of-moving"))
            with pytest.raises(ServiceError, match=f"gone .{gone}.*failed 2 times"):
                sending.send(out(name, b"cannot move", broker="gone"))


def test_which_brokers_take_a_topic(served: Served, servers: str, register: Registrar) -> None:
    for name, perm, queues in (("b1", 6, 2), ("b2", 4, 2), ("b3", 2, 3), ("b4", 6, 0)):
        topics = [topic("found", queues, perm), topic("TBW102", 8, 7)]
        register(registration(topics, name=name, address=f"127.0.0.1:{free_port()}"))
    slave = registration([], name="b5", broker_id=1, address=f"127.0.0.1:{free_port()}")
    register(slave)

    def places(topic: str, brokers: list[str] | None = None) -> list[tuple[str, int]]:
        found = PublishRoutes([servers], 20, ClientIdentity(), brokers).of(topic)
        return [(place.name, place.queues) for place in found]

    assert places("found") == [("b1", 2), ("b3", 3)]
    # A topic that does not exist is created by brokers with TBW102, in up to 4 queues.
    assert places("new") == [(name, 4) for name in ("b1", "b2", "b3", "b4")]
    assert places("found", ["b3", "b2"]) == [("b3", 3)]
    with pytest.raises(TopicNotFoundError, match="None of the brokers b2 takes messages"):
        places("found", ["b2"])


def test_a_topic_that_nobody_creates(tmp_path: Path) -> None:
    with name_server(tmp_path) as servers:
        asked = Registrar(servers)
        with (
            closing(asked.asked),
            pytest.raises(TopicNotFoundError, match=r"no route for orders.*mqadmin updateTopic"),
        ):
            PublishRoutes([servers], 20, ClientIdentity()).of("orders")


def test_how_long_a_broker_is_left_out() -> None:
    now = 100.0
    out = AvoidedBrokers(lambda: now)
    out.answered("b", 0.5)
    assert not out.has("b")
    for seconds, left_out in ((0.55, 30), (1, 60), (2.5, 120), (3, 180), (15, 600)):
        out.answered("b", seconds)
        now += left_out - 1
        assert out.has("b")
        now += 1
        assert not out.has("b")
    out.failed("c")
    now += 599
    assert out.has("c")
    assert out.soonest(["c", "b"]) == "b"
