"""What producers are told of messages that are stored, but not as durably as they should be."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from threading import enumerate as enumerate_threads
from typing import Any

import pytest

from rmqstore_spark.reader import Store
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import ask, batch, broker, message
from tests.support.messages.batches import rows_block
from tests.support.waiting import PATIENCE, eventually, is_opening_a_file, stuck_file

ANSWERED = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


@contextmanager
def held(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[Event]:
    """Let a function of `os` wait for files of the log; the value is set when one waits."""
    real, waits, released = getattr(os, name), Event(), Event()

    def slow(descriptor: int, *given: Any) -> Any:
        if "/commitlog/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            waits.set()
            assert released.wait(PATIENCE)
        return real(descriptor, *given)

    monkeypatch.setattr(os, name, slow)
    try:
        yield waits
    finally:
        released.set()
        monkeypatch.setattr(os, name, real)


def check_stored(path: Path, answers: list[Command], code: int, remark: str) -> None:
    """Check that answers name messages that are in the store: one, and then a batch of two."""
    with Store.open(path) as store:
        rows = [row for part in store.scan() for row in part.to_pylist()]
    assert [row["body"] for row in rows] == [b"one", b"two", b"three"]
    for answer, (first, *more) in zip(answers, (rows[:1], rows[1:]), strict=True):
        assert answer.code == code
        assert (answer.remark or "").startswith(remark)
        assert answer.ext == {
            "msgId": ",".join(row["msgId"] for row in (first, *more)),
            "queueId": str(first["queueId"]),
            "queueOffset": str(first["queueOffset"]),
            **ANSWERED,
        }


BOTH = (message(b"one", queue=2), batch([b"two", b"three"], e="2"))


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (11, "The messages are in the log, but no slave is connected"),
        (12, "The messages are in the log, but no slave had them within slaveTimeout (20 ms)."),
    ],
)
def test_a_sync_master_tells_that_no_slave_has_it(tmp_path: Path, code: int, remark: str) -> None:
    with broker(tmp_path / "store", broker_role="SYNC_MASTER", slave_timeout=20) as served:
        if code == 12:
            served.store.slaves.join()  # it is connected, and reports nothing
        answers = ask(served.address, *BOTH)
    check_stored(tmp_path / "store", answers, code, remark)


def test_a_flush_that_takes_too_long_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"flush_disk_type": "SYNC_FLUSH", "sync_flush_timeout": 20}
    with broker(tmp_path / "store", **settings) as served, held(monkeypatch, "fdatasync"):
        answers = ask(served.address, *BOTH)
    remark = "The messages are in the log, but were not on disk within syncFlushTimeout (20 ms)."
    check_stored(tmp_path / "store", answers, 10, remark)


def test_a_send_is_refused_while_another_holds_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker(tmp_path / "store", os_page_cache_busy_time_out_mills=20) as served:
        ask(served.address, message(b"first"))
        puts: list[Any] = []
        block = rows_block([b"slow", b"er"], ["orders"] * 2)
        with held(monkeypatch, "pwritev") as waits:
            thread = Thread(target=lambda: puts.append(served.store.put(block)))
            thread.start()
            assert waits.wait(PATIENCE)
            busy = ask(served.address, message(b"busy"), batch([b"too", b"late"]))
        thread.join(PATIENCE)
        assert puts[0].ok
        (after,) = ask(served.address, message(b"after"))
    for answer in busy:
        assert (answer.code, answer.ext) == (1, ANSWERED)
        assert answer.remark == "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
    assert after.code == 0
    with Store.open(tmp_path / "store") as store:
        bodies = [row["body"] for part in store.scan() for row in part.to_pylist()]
    assert sorted(bodies) == [b"after", b"er", b"first", b"slow"]


def test_other_requests_are_answered_while_a_send_waits_for_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask_behind_a_send(address: str) -> Command:
        async with await RemotingClient.connect(address, seconds=30) as client:
            sending = asyncio.create_task(client.ask_for(message(b"waits"), 30))
            await asyncio.sleep(0)  # lets it write its request first
            told = await client.ask_for(Command(RequestCode.GET_BROKER_CONFIG), 30)
            assert not sending.done()
            sending.cancel()
            return told

    with broker(tmp_path / "store", os_page_cache_busy_time_out_mills=60_000) as served:
        ask(served.address, message(b"first"))
        slow = Thread(target=served.store.put, args=(rows_block([b"slow", b"er"], ["orders"] * 2),))
        with held(monkeypatch, "pwritev") as waits:
            slow.start()
            assert waits.wait(PATIENCE)
            assert asyncio.run(ask_behind_a_send(served.address)).code == 0
        slow.join(PATIENCE)


def test_other_requests_are_answered_while_a_send_creates_its_topic(tmp_path: Path) -> None:
    """The file of the topics is written, and flushed, in another thread than that of the socket."""

    async def ask_behind_a_send(address: str) -> None:
        async with await RemotingClient.connect(address, seconds=30) as client:
            sending = asyncio.create_task(client.ask_for(message(b"new", topic="unheard"), 30))
            await asyncio.to_thread(eventually, is_writing_topics)
            told = await client.ask_for(Command(RequestCode.GET_BROKER_CONFIG), 30)
            assert told.code == 0
            await client.ask_for(message(b"second"), 30)  # its topic exists
            assert not sending.done()
            sending.cancel()

    with broker(tmp_path / "store") as served:
        ask(served.address, message(b"first"))
        with stuck_file(tmp_path / "store" / "config" / "topics.json.tmp"):
            asyncio.run(ask_behind_a_send(served.address))


def is_writing_topics() -> bool:
    return any(is_opening_a_file(t) for t in enumerate_threads() if t.name == "rmqstore-new-topics")
