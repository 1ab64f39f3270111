"""The client of name servers and brokers, against a broker, damaged answers and recordings."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from rmqstore_spark.client.brokers.answers import (
    read_brokers,
    read_names,
    read_offset,
    read_pulled,
    read_route,
    read_topics,
)
from rmqstore_spark.client.brokers.broker import BrokerClient
from rmqstore_spark.client.brokers.pulling import PulledPiece, QueuePuller
from rmqstore_spark.client.brokers.routes import NameServers
from rmqstore_spark.client.brokers.server_group import Addresses
from rmqstore_spark.errors import (
    CorruptRecordError,
    DataLossError,
    RemotingError,
    ReplicaError,
    RmqStoreError,
    ServiceError,
    TopicNotFoundError,
)
from rmqstore_spark.reader.options import ReadOptions
from rmqstore_spark.reader.rows.pulled import PulledRows
from rmqstore_spark.remoting.access.identity import ClientIdentity
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import Served, broker, records_in
from tests.client.tampering import Change, tampering
from tests.remoting.reading import read_frames
from tests.support.messages.blocks import encoded_traffic
from tests.support.messages.traffic import Traffic
from tests.support.processes.ports import free_port
from tests.support.recordings import exchanges

MESSAGES = 3000


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with broker(tmp_path_factory.mktemp("broker") / "store") as found:
        found.store.create_topic("orders", write_queue_nums=2)
        traffic = Traffic(MESSAGES * 2, topics={"orders": 2}, body_size=(1, 4000))
        for block in encoded_traffic(traffic):
            assert found.store.put(block).ok
        found.store.flush()
        yield found


def client_of(*addresses: str, seconds: float = 20.0, answer: float = 10.0) -> BrokerClient:
    return BrokerClient("broker-a", Addresses(addresses, True), seconds, answer, ClientIdentity())


def all_pieces(puller: QueuePuller, rows: int = 10_000, size: int = 16 << 20) -> list[PulledPiece]:
    found = []
    while taken := puller.take(rows, size):
        found += taken
    assert not puller.take(rows, size)
    return found


def offsets_in(pieces: list[PulledPiece]) -> list[int]:
    """The queue offsets of the records."""
    return [
        int.from_bytes(record[20:28], "big")
        for piece in pieces
        for record in records_in(piece.data)
    ]


def rows(pieces: list[PulledPiece], *, is_filtered: bool = False, **options: object) -> list[int]:
    wanted = ReadOptions(columns=("queueOffset", "body"), **options)  # type: ignore[arg-type]
    decoder = PulledRows("broker-a", "the broker", "orders", 0, wanted, is_filtered=is_filtered)
    return [at for batch in decoder.decode(pieces) for at in batch.column(0).to_pylist()]


@pytest.mark.parametrize(("count", "size"), [(10_000, 16 << 20), (100, 16 << 20), (10_000, 1)])
def test_a_range_arrives_whole_and_in_order(served: Served, count: int, size: int) -> None:
    with closing(client_of(served.address)) as client:
        puller = QueuePuller(client, ("orders", 0), 5, MESSAGES - 5)
        taken = puller.take(count, size)
        held = sum(len(piece.data) for piece in taken)
        assert count > 1000 or offsets_in(taken)[-1] < 3 * 512
        assert size > 1 or held < 3 << 20
        pieces = taken + all_pieces(puller, count, size)
    assert offsets_in(pieces) == list(range(5, MESSAGES - 5))
    assert [piece.start for piece in pieces[1:]] == [piece.end for piece in pieces[:-1]]
    assert not any(piece.why_gone for piece in pieces)


def test_a_connection_that_was_closed_between_two_takes_is_opened_again(served: Served) -> None:
    cut: list[bool] = []

    def once(asked: Command, answer: Command) -> Command | None:
        if asked.code == RequestCode.PULL_MESSAGE and asked.ext["queueOffset"] == "600" and not cut:
            cut.append(True)
            return None
        return answer

    with tampering(served.address, once) as address, closing(client_of(address)) as client:
        puller = QueuePuller(client, ("orders", 0), 600, 900)
        assert offsets_in(all_pieces(puller)) == list(range(600, 900))
    assert cut


def test_a_slave_is_asked_if_the_master_does_not_answer(served: Served) -> None:
    dead = f"127.0.0.1:{free_port()}"
    with closing(client_of(dead, served.address)) as client:
        assert client.max_offsets([("orders", 0), ("orders", 1)]) == [MESSAGES, MESSAGES]
        assert offsets_in(all_pieces(QueuePuller(client, ("orders", 1), 0, 50))) == list(range(50))


def test_a_slave_that_stays_behind_is_told(served: Served) -> None:
    dead = f"127.0.0.1:{free_port()}"
    with closing(client_of(dead, served.address, seconds=3.0)) as client:
        puller = QueuePuller(client, ("orders", 0), MESSAGES - 1, MESSAGES + 1)
        with pytest.raises(ReplicaError, match=f"offset {MESSAGES} of orders/0 yet"):
            all_pieces(puller)


def test_a_broker_that_does_not_answer_is_named(served: Served) -> None:
    dead = f"127.0.0.1:{free_port()}"
    with closing(client_of(dead, seconds=0.5)) as client:
        began = time.monotonic()
        with pytest.raises(ServiceError, match=rf"broker-a \({dead}\) does not answer.*refused"):
            client.topics()
        assert time.monotonic() - began < 10
    servers = NameServers([dead], 0.3, ClientIdentity())
    with servers, pytest.raises(ServiceError, match="name server"):
        servers.routes(["orders"])


def test_what_has_gone_is_told_apart_from_what_a_filter_leaves_out(served: Served) -> None:
    with closing(client_of(served.address)) as client:
        past = all_pieces(QueuePuller(client, ("orders", 0), MESSAGES + 5, MESSAGES + 9))
        assert [piece.why_gone for piece in past] == [
            f"the queue ends at {MESSAGES + 5}: it was cut, or deleted and recreated"
        ]
        with pytest.raises(DataLossError, match="failOnDataLoss=false"):
            rows(past)
        assert rows(past, fail_on_data_loss=False) == []
        none = all_pieces(QueuePuller(client, ("orders", 0), 0, 1000, "no such tag"))
        assert none
        assert not any(piece.why_gone or piece.data for piece in none)
        some = all_pieces(QueuePuller(client, ("orders", 0), 10, 1000, "TagA"))
        found = rows(some, is_filtered=True, tags=frozenset({"TagA"}))
        assert 0 < len(found) < 990
        assert found[0] >= 10
        assert found[-1] < 1000
        with pytest.raises(TopicNotFoundError, match="no longer has the topic other"):
            all_pieces(QueuePuller(client, ("other", 0), 0, 1))


def changed_pull(change: Change) -> Change:
    """Change the answers to pulls alone."""

    def of_pulls(asked: Command, answer: Command) -> Command | None:
        return change(asked, answer) if asked.code == RequestCode.PULL_MESSAGE else answer

    return of_pulls


def other_queue(_: Command, answer: Command) -> Command:
    """Messages that say they are of another queue."""
    answer.body = b"".join(
        record[:12] + (1).to_bytes(4, "big") + record[16:] for record in records_in(answer.body)
    )
    return answer


def other_offsets(_: Command, answer: Command) -> Command:
    """The same message again and again."""
    first = records_in(answer.body)[0]
    answer.body = first * len(records_in(answer.body))
    return answer


def outside(_: Command, answer: Command) -> Command:
    """Messages after those that were asked for."""
    answer.body = b"".join(
        record[:20] + (1 << 40).to_bytes(8, "big") + record[28:]
        for record in records_in(answer.body)
    )
    return answer


def cut_off(_: Command, answer: Command) -> Command:
    answer.body = answer.body[:-7]
    return answer


def lying_size(_: Command, answer: Command) -> Command:
    answer.body = b"\x7f\xff\xff\xff" + answer.body[4:]
    return answer


def flipped(_: Command, answer: Command) -> Command:
    """A byte of the first body is another one."""
    body = bytearray(answer.body)
    body[90] ^= 1
    answer.body = bytes(body)
    return answer


def left_out(_: Command, answer: Command) -> Command:
    answer.body = b"".join(records_in(answer.body)[1:])
    return answer


def back(asked: Command, answer: Command) -> Command:
    answer.ext["nextBeginOffset"] = asked.ext["queueOffset"]
    return answer


def no_messages(_: Command, answer: Command) -> Command:
    answer.body = b""
    return answer


def no_number(_: Command, answer: Command) -> Command:
    answer.ext["nextBeginOffset"] = "-9999999999999999999999"
    return answer


def refusing(_: Command, answer: Command) -> Command:
    return answer.answer(16, "the topic[orders] pulling message is forbidden\x1b[31m\nat line 7")


@pytest.mark.threat("What a broker sends")
@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (other_queue, CorruptRecordError, "not the message of its queue entry"),
        (other_offsets, ServiceError, "not those that were asked for"),
        (outside, ServiceError, "not those that were asked for"),
        (cut_off, CorruptRecordError, "is damaged"),
        (lying_size, CorruptRecordError, "is damaged"),
        (flipped, CorruptRecordError, "bodyCRC"),
        (left_out, DataLossError, "1 messages from offset 0 on have expired"),
        (back, ServiceError, "of messages from 0 on lead to 0"),
        (no_messages, ServiceError, "0 bytes of messages from 0 on lead to 20"),
        (no_number, ServiceError, "nextBeginOffset must be a number"),
        (refusing, RemotingError, r"broker-a .*: .*forbidden.*\(code 16\)"),
    ],
)
def test_wrong_answers_are_refused(
    served: Served, change: Change, error: type[RmqStoreError], text: str
) -> None:
    with (
        tampering(served.address, changed_pull(change)) as address,
        closing(client_of(address)) as client,
        pytest.raises(error, match=text) as found,
    ):
        rows(all_pieces(QueuePuller(client, ("orders", 0), 0, 20)))
    assert "\x1b" not in str(found.value)


def test_a_broker_passes_over_what_has_expired_and_gives_more_behind_it(served: Served) -> None:
    with closing(client_of(served.address)) as client:
        found = records_in(all_pieces(QueuePuller(client, ("orders", 0), 0, 30))[0].data)
    piece = PulledPiece(0, 20, b"".join(found[5:25]))
    assert rows([piece], fail_on_data_loss=False) == list(range(5, 20))
    with pytest.raises(DataLossError, match="5 messages from offset 0 on have expired"):
        rows([piece])


def test_what_a_slave_lacks_is_asked_of_the_master_again(served: Served) -> None:
    """The master is too busy at first, and the slave's queue begins later."""
    asked_master: list[str] = []

    def busy_once(asked: Command, answer: Command) -> Command:
        if asked.code == RequestCode.PULL_MESSAGE:
            asked_master.append(asked.ext["queueOffset"])
            if len(asked_master) == 1:
                return answer.answer(ResponseCode.SYSTEM_BUSY, "busy")
        return answer

    def begins_later(asked: Command, answer: Command) -> Command:
        if asked.code == RequestCode.PULL_MESSAGE and asked.ext["queueOffset"] == "0":
            ext = {**answer.ext, "nextBeginOffset": "7"}
            return asked.answer(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", ext)
        return answer

    with (
        tampering(served.address, busy_once) as master,
        tampering(served.address, begins_later) as slave,
        closing(client_of(master, slave)) as client,
    ):
        assert rows(all_pieces(QueuePuller(client, ("orders", 0), 0, 20))) == list(range(20))
    assert asked_master == ["0", "0"]
    # Where no master is registered, the slave's word counts when the time is over.
    with tampering(served.address, begins_later) as slave:
        addresses = Addresses((slave,), has_master=False)
        client = BrokerClient("broker-a", addresses, 0.5, 0.5, ClientIdentity())
        with closing(client), pytest.raises(DataLossError, match="7 messages from offset 0 on"):
            rows(all_pieces(QueuePuller(client, ("orders", 0), 0, 20)))


def test_servers_that_stay_busy_are_not_called_unreachable(served: Served) -> None:
    def busy(_: Command, answer: Command) -> Command:
        return answer.answer(ResponseCode.SYSTEM_BUSY, "too many pulls.")

    with tampering(served.address, busy) as address:
        client = client_of(address, seconds=0.2)
        words = rf"{address}\) stays too busy. .*too many pulls. Try again later, or raise request"
        with closing(client), pytest.raises(ServiceError, match=words):
            client.topics()


def test_a_slave_that_takes_no_pulls_says_which_key_lets_it(served: Served) -> None:
    """As one of RocketMQ 5.3 does, whose master has gone."""

    def rejects(asked: Command, answer: Command) -> Command:
        if asked.code == RequestCode.PULL_MESSAGE:
            remark = "[REJECTREQUEST]system busy, start flow control for a while"
            return answer.answer(ResponseCode.SYSTEM_BUSY, remark)
        return answer

    with tampering(served.address, rejects) as slave:
        addresses = Addresses((slave,), has_master=False)
        client = BrokerClient("broker-a", addresses, 0.2, 0.2, ClientIdentity())
        words = r"\[REJECTREQUEST\].* slave of RocketMQ 5 is read only if slaveReadEnable=true"
        with closing(client), pytest.raises(ServiceError, match=words):
            all_pieces(QueuePuller(client, ("orders", 0), 0, 20))


@pytest.mark.parametrize(("change", "left"), [(flipped, 19), (cut_off, 19), (lying_size, 0)])
def test_damage_can_be_left_out(served: Served, change: Change, left: int) -> None:
    with (
        tampering(served.address, changed_pull(change)) as address,
        closing(client_of(address)) as client,
    ):
        pieces = all_pieces(QueuePuller(client, ("orders", 0), 0, 20))
    assert len(rows(pieces, mode="DROPMALFORMED")) == left


@pytest.mark.threat("What a broker sends")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff" * 100,
        b'{"topicConfigTable":{"orders":{"readQueueNums":2000000000}}}',
        b'{"topicConfigTable":{"a\\u001bb":{}}}',
        b'{"topicConfigTable":[1]}',
        b"[" * 100_000,
    ],
)
def test_tables_that_no_broker_sends_are_refused(served: Served, body: bytes) -> None:
    with (
        tampering(served.address, lambda _, answer: answer.answer(body=body)) as address,
        closing(client_of(address)) as client,
        pytest.raises(ServiceError, match="sent an invalid answer"),
    ):
        client.topics()


def recorded(name: str, code: RequestCode) -> Iterator[tuple[Command, Command]]:
    """The requests of a recording with some code, with RocketMQ's answers."""
    found = (one for peer in ("namesrv", "broker", "broker-vip") for one in exchanges(name, peer))
    for exchange in found:
        if exchange.request.header["code"] == code and exchange.answer is not None:
            yield read_frames(exchange.request.wire)[0], read_frames(exchange.answer.wire)[0]


def test_rocketmqs_answers_to_pulls_are_read() -> None:
    seen: dict[int, int] = {}
    messages = 0
    for asked, answer in recorded("java-pull", RequestCode.PULL_MESSAGE):
        seen[answer.code] = seen.get(answer.code, 0) + 1
        if answer.code not in (0, 19, 20, 21):
            with pytest.raises(RemotingError):
                read_pulled(answer, "RocketMQ")
            continue
        pulled = read_pulled(answer, "RocketMQ")
        start = int(asked.ext["queueOffset"])
        assert bool(pulled.data) == (answer.code == 0)
        if pulled.data:
            piece = PulledPiece(start, pulled.next, pulled.data)
            topic, queue_id = asked.ext["topic"], int(asked.ext["queueId"])
            decoder = PulledRows("b", "b", topic, queue_id, ReadOptions(), is_filtered=True)
            (batch,) = decoder.decode([piece])
            assert batch.column("queueOffset").to_pylist() == offsets_in([piece])
            assert set(batch.column("topic").to_pylist()) == {topic}
            messages += batch.num_rows
    assert {0, 19, 20, 21} <= seen.keys()
    assert messages > 10


def test_rocketmqs_answers_about_offsets_are_read() -> None:
    codes = (
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    )
    for code in codes:
        answers = [answer for _, answer in recorded("java-pull", code)]
        assert answers
        for answer in answers:
            assert read_offset(answer, "RocketMQ") == int(answer.ext["offset"])


def test_rocketmqs_routes_and_tables_are_read() -> None:
    routes = [answer for _, answer in recorded("java-send", RequestCode.GET_ROUTEINFO_BY_TOPIC)]
    found = [read_route(answer, "RocketMQ") for answer in routes]
    assert None in found
    (place,) = next(filter(None, found))
    assert place.name == "broker-a"
    assert place.addresses == {0: "127.0.0.1:10911"}
    assert not place.endpoints
    (clusters, *_) = [a for _, a in recorded("mqadmin", RequestCode.GET_BROKER_CLUSTER_INFO)]
    assert [one.name for one in read_brokers(clusters, "RocketMQ")] == ["broker-a"]
    lists = recorded("mqadmin", RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert "TBW102" in read_names(next(lists)[1], "RocketMQ")
    tables = recorded("slave-master-admin", RequestCode.GET_ALL_TOPIC_CONFIG)
    topics = read_topics(next(tables)[1], "RocketMQ")
    assert topics["TBW102"].perm == 7
    assert topics["SCHEDULE_TOPIC_XXXX"].read_queues == 18


def test_an_endpoint_is_found_in_a_route_and_other_filter_servers_are_passed_over() -> None:
    place = (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},'
        b'"brokerName":"b","cluster":"C"}],"filterServerTable":{"10.0.0.1:10911":["10.0.0.9:1234",'
        b'"unix:/tmp/x","rmqs://10.0.0.1:10921"],"10.0.0.2:10911":["nonsense"]}}'
    )
    (found,) = read_route(Command(0, body=place), "a name server") or []
    assert found.addresses == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}
    assert found.endpoints == {"10.0.0.1:10911": "rmqs://10.0.0.1:10921"}


def test_brokers_without_addresses_or_roles_are_left_out() -> None:
    body = (
        b'{"brokerDatas":[{"brokerAddrs":{},"brokerName":"a"},'
        b'{"brokerAddrs":{"-1":"10.0.0.1:1","1":"10.0.0.2:1"},"brokerName":"b"}]}'
    )
    (found,) = read_route(Command(0, body=body), "a name server") or []
    assert (found.name, found.addresses) == ("b", {1: "10.0.0.2:1"})


def test_group_offsets(served: Served) -> None:
    queues = [("orders", 0), ("orders", 1)]
    with closing(client_of(served.address)) as client:
        client.commit_offsets("lake", {"orders": {0: 17}})
        assert client.group_offsets("lake", queues)[0] == 17
        assert client.group_offsets("nobody", queues) == [0, 0]
