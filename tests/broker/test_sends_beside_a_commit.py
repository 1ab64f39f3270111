"""Sends while a batch is committed: those to other topics are stored, those to its topics wait."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.reader import Store
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import broker, message
from tests.support.messages.batches import bodies, commit_batch, expected, rows_block
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
