"""Ends of transactions while a batch is committed: only those to its queues wait, and not long."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from rmqstore_spark.reader import Store
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import broker, message
from tests.support.messages.batches import bodies, commit_batch, expected, rows_block
from tests.support.messages.stopped import stopped_commit
from tests.support.stores.storing import until

COMMIT, ROLL_BACK = "8", "12"


def half(name: str, topic: str) -> Command:
    """A request to send a half message."""
    marks = f"TRAN_MSG\x01true\x02PGROUP\x01producers\x02UNIQ_KEY\x01{name}"
    return message(name.encode(), topic, i=marks)


def end(sent: Command, outcome: str = COMMIT) -> Command:
    """A request to end the transaction of a half message."""
    return Command(
        RequestCode.END_TRANSACTION,
        {
            "producerGroup": "producers",
            "tranStateTableOffset": sent.ext["queueOffset"],
            "commitLogOffset": str(int(sent.ext["msgId"][16:], 16)),
            "commitOrRollback": outcome,
        },
    )


def test_ends_pass_those_that_wait_for_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock's patience is too short for them, and that of the test: none is to be refused."""
    path = tmp_path / "store"

    async def send(address: str) -> dict[tuple[str, int], Command]:
        async with await RemotingClient.connect(address, seconds=30) as client:
            return {
                (topic, n): await client.ask(half(f"{topic} {n}", topic), 30)
                for topic in ("orders", "others")
                for n in range(4)
            }

    async def run(address: str, go: threading.Event) -> None:
        async with (
            await RemotingClient.connect(address, seconds=30) as one,
            await RemotingClient.connect(address, seconds=30) as two,
        ):
            waiting = [asyncio.ensure_future(one.ask(end(sent["orders", n]), 60)) for n in range(3)]
            # What is asked later for a transaction that waits does not overtake it.
            waiting.append(asyncio.ensure_future(one.ask(end(sent["orders", 0], ROLL_BACK), 60)))
            for n in range(3):
                assert (await two.ask(end(sent["others", n]), 30)).code == ResponseCode.SUCCESS
            # Rolled back, nothing is stored in its queue.
            rolled_back = await two.ask(end(sent["orders", 3], ROLL_BACK), 30)
            assert rolled_back.code == ResponseCode.SUCCESS
            # Half messages, also for topics of the batch, and on the connection of those that wait.
            for client, topic in ((one, "orders"), (two, "others")):
                stored = await client.ask(half(f"new {topic}", topic), 30)
                assert stored.code == ResponseCode.SUCCESS
            assert not any(each.done() for each in waiting)
            go.set()
            answers = await asyncio.gather(*waiting)
            assert [each.code for each in answers] == [ResponseCode.SUCCESS] * 4
            assert "had ended before" in (answers[3].remark or "")

    settings = {"os_page_cache_busy_time_out_mills": 100}
    with broker(path, mapped_file_size_commit_log=1 << 20, **settings) as served:
        assert served.store.put(rows_block(bodies("first", 8))).ok
        assert served.store.put(rows_block(bodies("first", 1), ["others"])).ok
        sent = asyncio.run(send(served.address))
        assert {each.code for each in sent.values()} == {ResponseCode.SUCCESS}
        with stopped_commit(monkeypatch, lambda: commit_batch(served.store, 0)) as go:
            asyncio.run(run(served.address, go))
        until(lambda: served.store.stats()["transactionsCommitted"] == 6)
    with Store.open(path) as store:
        rows = [row["body"] for b in store.scan() for row in b.to_pylist()]
    first, last = rows.index(expected(0)[0]), rows.index(expected(0)[-1])
    ends = [(place, body) for place, body in enumerate(rows) if place > 16 and b" " in body]
    assert {b for at, b in ends if at < first and b.startswith(b"others ")} == {
        b"others 0", b"others 1", b"others 2"
    }  # fmt: skip
    assert {b for at, b in ends if at > last} == {b"orders 0", b"orders 1", b"orders 2"}
