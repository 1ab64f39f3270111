"""What producers send."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.broker.core.messages import joined_properties, split_batch
from rmqstore_spark.broker.core.refusal import Refusal
from rmqstore_spark.layout.spans import array_spans, binary_array
from rmqstore_spark.reader import Store
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.frames import FrameReader, encode_frame
from tests.broker.broker import Served, batch, broker, message

LONG = (
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag",
    "bornTimestamp", "flag", "properties", "reconsumeTimes",
)  # fmt: skip


def talk(served: Served, work: Callable[[RemotingClient], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with await RemotingClient.connect(served.address, seconds=30) as client:
            return await work(client)

    return asyncio.run(run())


def ask(served: Served, *requests: Command) -> list[Command]:
    async def work(client: RemotingClient) -> list[Command]:
        return [await client.ask(request, 30) for request in requests]

    return talk(served, work)


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def rows(path: Path) -> list[dict[str, Any]]:
    with Store.open(path) as store:
        return [row for part in store.scan() for row in part.to_pylist()]


def test_messages_are_stored_as_a_broker_stores_them(tmp_path: Path) -> None:
    path = tmp_path / "store"
    old = message(b"long names", queue=1)
    old = Command(
        RequestCode.SEND_MESSAGE, dict(zip(LONG, old.ext.values(), strict=False)), old.body
    )
    with broker(path, broker_cluster_name="C1") as served:
        first = message(
            "über".encode(), i="KEYS\x01k1\x02WAIT\x01true\x02TAGS\x01a", h="7", queue=2
        )
        one, two, some = ask(served, first, old, batch([b"b0", b"b1"], b"TAGS\x01t\x02", e="3"))
        assert [each.code for each in (one, two, some)] == [0, 0, 0]
        assert one.ext["queueId"] == "2"
        assert one.ext["queueOffset"] == "0"
        assert (one.ext["MSG_REGION"], one.ext["TRACE_ON"]) == ("DefaultRegion", "true")
        assert some.ext["msgId"].count(",") == 1
        port = served.store.config.listen_port
    found = rows(path)
    assert [row["body"] for row in found] == ["über".encode(), b"long names", b"b0", b"b1"]
    assert dict(found[0]["properties"]) == {"KEYS": "k1", "TAGS": "a", "CLUSTER": "C1"}
    assert dict(found[2]["properties"]) == {"TAGS": "t", "CLUSTER": "C1"}
    log = (path / "commitlog" / f"{0:020}").read_bytes()
    assert log.count(b"TAGS\x01t\x02CLUSTER\x01C1") == 2  # one separator, as in a single message
    assert [row["queueId"] for row in found] == [2, 1, 3, 3]
    assert [row["queueOffset"] for row in found[2:]] == [0, 1]
    assert [row["flag"] for row in found] == [7, 0, 7, 7]
    assert found[0]["storeHost"] == f"127.0.0.1:{port}"
    assert found[0]["bornHost"].startswith("127.0.0.1:")
    assert found[0]["msgId"] == one.ext["msgId"]


def test_a_new_topic_takes_the_settings_of_its_default(tmp_path: Path) -> None:
    with broker(tmp_path / "store", default_topic_queue_nums=3) as served:
        few, many, trace, none = ask(
            served,
            message(b"x", "few", d="2"),
            message(b"x", "many", d="9"),
            message(b"x", "RMQ_SYS_TRACE_TOPIC", d="1"),  # of clients with enableMsgTrace
            message(b"x", "none", c="Nope"),
        )
        assert [few.code, many.code, trace.code] == [0, 0, 0]
        assert none.code == ResponseCode.TOPIC_NOT_EXIST
        assert (none.remark or "").startswith("topic[none] not exist, apply first please!")
        counts = {topic.name: topic.write_queue_nums for topic in served.store.topics}
        assert counts == {"few": 2, "many": 3, "RMQ_SYS_TRACE_TOPIC": 1}


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")
def test_a_producer_comes_over_ipv6(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with broker(path, broker_ip1="::1", bind_address="::1") as served:
        (answer,) = ask(served, message(b"six"))
        assert answer.code == ResponseCode.SUCCESS
    (row,) = rows(path)
    assert row["bornHost"].startswith("[0:0:0:0:0:0:0:1]:")
    assert (row["body"], row["msgId"]) == (b"six", answer.ext["msgId"])


def test_no_topic_is_created_where_that_is_forbidden(tmp_path: Path) -> None:
    with broker(tmp_path / "store", auto_create_topic_enable=False) as served:
        (answer,) = ask(served, message(b"x"))
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert not len(served.store.topics)


def test_what_cannot_be_stored_is_refused_alone(tmp_path: Path) -> None:
    with broker(tmp_path / "store", max_message_size=1000) as served:
        served.store.create_topic("closed", perm=4)
        answers = ask(
            served,
            message(b"x" * 1001),
            message(b"x", i="KEYS\x01" + "k" * 32_767),
            message(b"x", queue=8),
            message(b"x", "closed"),
            message(b"x", i="TRAN_MSG\x01true"),
            message(b"x", "SCHEDULE_TOPIC_XXXX"),
            batch([b"x"], e="8"),
            message(b"xx", f="1"),
            message(b"x", i="INNER_MULTI_DISPATCH\x01%LMQ%a"),
        )
        assert [answer.code for answer in answers] == [
            ResponseCode.MESSAGE_ILLEGAL, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SYSTEM_ERROR,
            ResponseCode.NO_PERMISSION, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_PERMISSION,
            ResponseCode.SYSTEM_ERROR, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.MESSAGE_ILLEGAL,
        ]  # fmt: skip
        assert served.store.stats()["putMessages"] == 0


def test_a_request_that_cannot_be_read_fails_alone(tmp_path: Path) -> None:
    """Half of a character is JSON, but not a text that can be stored."""

    async def both(client: RemotingClient) -> list[Command]:
        odd = batch([b"x"], i="a\x01\ud800")
        return list(await asyncio.gather(client.ask(odd, 30), client.ask(message(b"good"), 30)))

    path = tmp_path / "store"
    with broker(path) as served:
        assert talk(served, both)[1].code == ResponseCode.SUCCESS
    assert b"good" in {row["body"] for row in rows(path)}


def test_what_arrives_together_is_one_put(tmp_path: Path) -> None:
    async def many(address: str) -> list[Command]:
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        frames = []
        for opaque in range(100):
            # One of them is not a zlib stream: the others must not suffer.
            request = message(
                b"%d" % opaque, "together", queue=opaque % 4, f=str(int(opaque == 50))
            )
            request.opaque = opaque
            frames.append(encode_frame(request))
        writer.write(b"".join(frames))
        found: list[Command] = []
        frames_in = FrameReader()
        while len(found) < 100:
            commands, error = frames_in.feed(await asyncio.wait_for(reader.read(1 << 20), 30))
            assert error is None
            found += commands
        writer.close()
        return found

    path = tmp_path / "store"
    with broker(path) as served:
        ask(served, message(b"first", "together"))
        answers = asyncio.run(many(served.address))
        bad = {answer.opaque: answer.code for answer in answers if answer.code}
        assert bad == {50: ResponseCode.MESSAGE_ILLEGAL}
        assert sorted(answer.opaque for answer in answers) == list(range(100))
        good = asyncio.run(many(served.address))
        stats = served.store.stats()
        assert stats["putMessages"] == 1 + 2 * 99
    by_place = {(row["queueId"], row["queueOffset"]): row["body"] for row in rows(path)}
    for answer in (answer for answer in good if not answer.code):
        place = int(answer.ext["queueId"]), int(answer.ext["queueOffset"])
        assert by_place[place] == b"%d" % answer.opaque


def test_a_batch_lies_in_one_segment_or_is_refused(tmp_path: Path) -> None:
    sends = [batch([b"%d" % n * 500] * 3) for n in range(9)]  # two of them fill a segment
    sends.insert(4, batch([b"x" * 1500] * 3))

    async def together(client: RemotingClient) -> list[Command]:
        return list(await asyncio.gather(*(client.ask(send, 30) for send in sends)))

    with broker(tmp_path / "store", mapped_file_size_commit_log=4096) as served:
        answers = talk(served, together)
    refused = answers.pop(4)
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert "a segment of the CommitLog has room for 4088" in (refused.remark or "")
    assert [answer.code for answer in answers] == [0] * 9
    for answer in answers:
        places = [int(msg_id[-16:], 16) for msg_id in answer.ext["msgId"].split(",")]
        assert len(places) == 3
        assert len({place // 4096 for place in places}) == 1


def test_nobody_answers_what_is_one_way(tmp_path: Path) -> None:
    async def work(client: RemotingClient) -> Command:
        await client.tell(message(b"one way"))
        await client.tell(message(b"refused", queue=99))
        return await client.ask(message(b"asked"), 30)

    path = tmp_path / "store"
    with broker(path) as served:
        assert talk(served, work).ext["queueOffset"] == "1"
    assert [row["body"] for row in rows(path)] == [b"one way", b"asked"]


def test_delayed_messages_wait(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with broker(path) as served:
        (answer,) = ask(served, message(b"later", queue=3, i="DELAY\x0118"))
        assert (answer.code, answer.ext["queueId"]) == (0, "3")
        served.store.flush()
        assert served.store.stats()["queues"] == {"SCHEDULE_TOPIC_XXXX": {"17": [0, 1]}}


def test_what_was_consumed_too_often_is_a_dead_letter(tmp_path: Path) -> None:
    with broker(tmp_path / "store") as served:
        again, dead, by_request = ask(
            served,
            message(b"again", "%RETRY%group", j="15"),
            message(b"dead", "%RETRY%group", j="16", i="DELAY\x013"),
            message(b"dead too", "%RETRY%group", j="2", l="2"),
        )
        assert [again.code, dead.code, by_request.code] == [0, 0, 0]
        served.store.flush()
        queues = served.store.stats()["queues"]
        assert queues == {"%RETRY%group": {"0": [0, 1]}, "%DLQ%group": {"0": [0, 2]}}


@given(st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20)), min_size=1, max_size=9))
def test_a_batch_is_split_as_it_was_made(messages: list[tuple[bytes, bytes]]) -> None:
    body = b"".join(batch([body], properties).body for body, properties in messages)
    found = split_batch(body, 9)
    bodies, properties = (
        binary_array(spans).to_pylist() for spans in (found.bodies, found.properties)
    )
    assert list(zip(bodies, properties, strict=True)) == messages
    assert found.flags.tolist() == [7] * len(messages)
    with pytest.raises(Refusal):
        split_batch(body, len(messages) - 1)
    with pytest.raises(Refusal):
        split_batch(body[:-1], 9)


@given(
    own=st.lists(st.binary(max_size=6) | st.sampled_from([b"\2", b"a\2\2", b"\2a"]), min_size=1),
    shared=st.binary(min_size=1, max_size=5),
)
def test_what_a_batch_shares_follows_the_properties_of_each(
    own: list[bytes], shared: bytes
) -> None:
    spans = array_spans(pa.array([b"before", *own, b"\2"], pa.binary()))
    rows = np.arange(1, len(own) + 1)
    offsets, data = joined_properties(spans.take(rows), shared)
    found = [bytes(data[first:last]) for first, last in pairwise(offsets.tolist())]
    closed = [one.rstrip(b"\2") for one in own]
    assert found == [one + b"\2" + shared if one else shared for one in closed]


def test_damaged_batches_are_refused() -> None:
    good = batch([b"one", b"two"], b"a\x01b").body
    random.seed(7)
    for _ in range(300):
        damaged = bytearray(good)
        for _ in range(random.randint(1, 4)):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        try:
            found = split_batch(bytes(damaged), 10)
        except Refusal:
            continue
        assert int((found.bodies.starts + found.bodies.lengths).max()) <= len(damaged)
        assert int(found.bodies.lengths.min()) >= 0
        assert int(found.properties.lengths.min()) >= 0


def test_a_send_whose_client_has_given_up_is_not_stored(tmp_path: Path) -> None:
    """With a patience of 1 ms, hardly any that arrive together are in time."""
    path, count = tmp_path / "store", 300

    async def work(client: RemotingClient) -> list[Command]:
        asked = []
        for n in range(count):
            await client.tell(message(b"one-way %d" % n))
            asked.append(asyncio.create_task(client.ask(message(b"%d" % n), 30)))
        return list(await asyncio.gather(*asked))

    with broker(path, wait_time_mills_in_send_queue=1, flush_disk_type="SYNC_FLUSH") as served:
        served.store.create_topic("orders", write_queue_nums=4)
        rounds = [talk(served, work)]
        while len(rounds) < 50 and not any(answer.code for answer in rounds[-1]):
            rounds.append(talk(served, work))
    late = [answer for answers in rounds for answer in answers if answer.code]
    assert {answer.code for answer in late} == {ResponseCode.SYSTEM_BUSY}
    assert all(
        (answer.remark or "").startswith(
            "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
        )
        for answer in late
    )
    stored = [row["body"] for row in rows(path)]
    acknowledged = [
        b"%d" % n for answers in rounds for n, answer in enumerate(answers) if not answer.code
    ]
    one_way = [b"one-way %d" % n for n in range(count)] * len(rounds)
    assert sorted(stored) == sorted([*acknowledged, *one_way])
    with broker(path, wait_time_mills_in_send_queue=60_000) as served:
        assert not any(answer.code for answer in talk(served, work))
