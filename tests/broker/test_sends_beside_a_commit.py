"""Sends while a batch is committed: those to other topics are stored, those to its topics wait."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmqstore_spark.base.types import CommitRequest, WriterId
from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.reader import Store
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import ask, batch, broker, message
from tests.support.messages.batches import QUERY, bodies, commit_batch, expected, rows_block
from tests.support.messages.blocks import encoded
from tests.support.messages.stopped import stopped_commit

SEGMENT = 1 << 20
FORMS: tuple[dict[str, Any], ...] = ({}, {"i": "DELAY\x02WAIT\x01true"}, {"f": "256"})


def test_sends_to_other_topics_pass_those_that_wait_for_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(address: str, go: threading.Event) -> tuple[list[Command], list[Command]]:
        held_first = (message(b"%d" % n, "orders", **FORMS[n % 3]) for n in range(6))
        others = [message(b"%d" % n, "others", **FORMS[n % 3]) for n in range(9)]
        async with (
            await RemotingClient.connect(address, seconds=30) as one,
            await RemotingClient.connect(address, seconds=30) as two,
        ):
            waiting = [asyncio.ensure_future(one.ask(each, 60)) for each in held_first]
            answers = [await two.ask(each, 30) for each in others]
            # Also on the connection of those that wait, and to a topic that does not exist.
            answers.append(await one.ask(message(b"9", "others"), 30))
            answers.append(await one.ask(message(b"new", "new"), 30))
            assert not any(each.done() for each in waiting)
            go.set()
            return answers, list(await asyncio.gather(*waiting))

    path = tmp_path / "store"
    settings = {"os_page_cache_busy_time_out_mills": 60_000, "mapped_file_size_commit_log": SEGMENT}
    with broker(path, **settings) as served:
        assert served.store.put(rows_block(bodies("first", 8))).ok
        assert served.store.put(rows_block(bodies("first", 1), ["others"])).ok
        with stopped_commit(monkeypatch, lambda: commit_batch(served.store, 0)) as go:
            answers, held = asyncio.run(run(served.address, go))
    assert {each.code for each in (*answers, *held)} == {ResponseCode.SUCCESS}
    with Store.open(path) as store:
        rows = [row for b in store.scan() for row in b.to_pylist()]
    orders = [row["body"] for row in rows if row["topic"] == "orders"]
    assert [body for body in orders if body.isdigit()] == [b"%d" % n for n in range(6)]
    assert [row["body"] for row in rows if row["topic"] == "others"][1:] == [
        b"%d" % n for n in range(10)
    ]
    places = [number for number, row in enumerate(rows) if row["body"] in set(expected(0))]
    sent = [n for n, row in enumerate(rows) if row["topic"] == "orders" and row["body"].isdigit()]
    assert max(n for n, row in enumerate(rows) if row["topic"] == "others") < min(places)
    assert max(places) < min(sent)


def commit_delayed(store: StoreWriter, *topics: str) -> None:
    """Commit a batch with delayed rows, and with others that make room."""
    stage = store.batches.begin_stage("0" * 32)
    stage.append(rows_block(bodies("makes room", 200)))
    for topic in topics:
        stage.append(
            encoded(
                pa.RecordBatch.from_pydict(
                    {
                        "topic": [topic],
                        "queueId": pa.array([0], pa.int32()),
                        "body": pa.array([b"of the batch"]),
                        "properties": pa.array([b"DELAY\x013" if topic == "orders" else b""]),
                        "bornTimestamp": pa.array([0]),
                    }
                )
            )
        )
    store.batches.commit(CommitRequest(WriterId.of_stream(QUERY, 0), (stage.finish(),)))


def test_sends_pass_delayed_ones_that_wait_for_delayed_ones_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those to the same topics, and those that come together with them."""

    async def run(address: str, go: threading.Event) -> None:
        async with (
            await RemotingClient.connect(address, seconds=30) as one,
            await RemotingClient.connect(address, seconds=30) as two,
        ):
            held = [
                message(b"held", "others", i="DELAY\x013"),
                batch([b"held 1", b"held 2"], b"DELAY\x013", b="others"),
                message(b"held", "%RETRY%dead", j="99"),  # it goes to the dead letters
            ]
            waiting = [asyncio.ensure_future(one.ask(each, 60)) for each in held]
            free = [message(b"%d" % n, "others", **FORMS[n % 3]) for n in range(9)]
            free.append(message(b"not delayed", "others", i="DELAY\x010"))
            answers = [await two.ask(each, 30) for each in free]
            answers += await asyncio.gather(*(one.ask(each, 30) for each in free))
            assert {each.code for each in answers} == {ResponseCode.SUCCESS}
            assert not any(each.done() for each in waiting)
            go.set()
            found = await asyncio.gather(*waiting)
            assert {each.code for each in found} == {ResponseCode.SUCCESS}

    settings = {"os_page_cache_busy_time_out_mills": 60_000, "mapped_file_size_commit_log": SEGMENT}
    with broker(tmp_path / "store", **settings) as served:
        store = served.store
        assert store.put(rows_block(bodies("first", 1), ["others"])).ok
        ask(served.address, message(b"first", "%RETRY%dead", j="99"))
        with stopped_commit(
            monkeypatch, lambda: commit_delayed(store, "orders", "%DLQ%dead")
        ) as go:
            asyncio.run(run(served.address, go))


def test_nothing_waits_for_messages_that_consumers_send_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def back(sent: Command) -> Command:
        return Command(
            RequestCode.CONSUMER_SEND_MSG_BACK,
            {
                "group": "consumers",
                "offset": str(int(sent.ext["msgId"][16:], 16)),
                "delayLevel": "0",
                "maxReconsumeTimes": "16",
            },
        )

    async def run(address: str, go: threading.Event) -> None:
        async with (
            await RemotingClient.connect(address, seconds=30) as one,
            await RemotingClient.connect(address, seconds=30) as two,
        ):
            waiting = [asyncio.ensure_future(one.ask(back(sent), 60)) for _ in range(3)]
            for _ in range(3):
                end = Command(RequestCode.GET_MAX_OFFSET, {"topic": "others", "queueId": "0"})
                assert (await two.ask(end, 30)).code == ResponseCode.SUCCESS
                assert (await two.ask(message(b"free", "others"), 30)).code == ResponseCode.SUCCESS
            assert not any(each.done() for each in waiting)
            go.set()
            answers = await asyncio.gather(*waiting)
            assert {each.code for each in answers} == {ResponseCode.SUCCESS}

    settings = {"os_page_cache_busy_time_out_mills": 60_000, "mapped_file_size_commit_log": SEGMENT}
    with broker(tmp_path / "store", **settings) as served:
        store = served.store
        sent, _ = ask(served.address, message(b"sent", "others"), message(b"sent", "others"))
        first = ask(served.address, back(sent))
        assert first[0].code == ResponseCode.SUCCESS, first
        with stopped_commit(monkeypatch, lambda: commit_delayed(store, "orders")) as go:
            asyncio.run(run(served.address, go))
