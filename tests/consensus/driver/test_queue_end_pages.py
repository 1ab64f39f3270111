"""The pages in which a member tells where queues end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

import pytest

from rmqstore_spark.consensus.driver.group import QueueEndsTold
from rmqstore_spark.consensus.driver.queue_end_pages import BEFORE_ALL, QueueEndPages, Route
from rmqstore_spark.consensus.driver.wire import (
    WireMessage,
    WireQueueEnds,
    code_words,
    decode,
    encode,
)
from rmqstore_spark.errors import FrameError, StoreWriteError
from tests.consensus.driver.members import GROUP

Ends = Mapping[str, Mapping[str, int]]


def store(topics: int, queues: int) -> Ends:
    return {
        f"orders-topic-{topic:06d}": {str(queue): 123_456 + queue for queue in range(queues)}
        for topic in range(topics)
    }


async def all_of(pages: QueueEndPages) -> tuple[list[WireQueueEnds], dict[Route, int]]:
    """Every page, as another member asks for them, and what they have together."""
    told: list[WireQueueEnds] = []
    found: dict[Route, int] = {}
    last = BEFORE_ALL
    while not told or not told[-1].is_last:
        told.append(decode(WireQueueEnds, await pages.behind(last)))
        ends = told[-1].ends
        found |= {(topic, int(n)): end for topic, of in ends.items() for n, end in of.items()}
        assert max(found, default=BEFORE_ALL) > last or told[-1].is_last
        last = max(found, default=BEFORE_ALL)
    return told, found


@pytest.mark.parametrize(
    "ends",
    [
        {},
        store(1, 1),
        store(1, 65_536),
        store(20_000, 4),
        store(16_000, 8),
        store(30_000, 1),
        store(34_000, 8),
        {"\x01" * 255: {str(queue): 1 for queue in range(3000)}},
    ],
    ids=lambda ends: f"{len(ends)} topics, {sum(map(len, ends.values()))} queues",
)
def test_the_pages_have_all_queues_and_each_has_a_bound(ends: Ends) -> None:
    """The guard against pushes of millions of entries refused a message of so many topics."""

    async def told() -> tuple[list[WireQueueEnds], dict[Route, int]]:
        pages = QueueEndPages(GROUP, "n0", lambda: QueueEndsTold(True, ends, 77))
        try:
            return await all_of(pages)
        finally:
            await pages.close()

    found, routes = asyncio.run(told())
    wanted = {(topic, int(n)): end for topic, of in ends.items() for n, end in of.items()}
    assert routes == wanted
    assert {(page.known, page.log_end, page.remote_id) for page in found} == {(True, 77, "n0")}
    assert max(len(encode(page)) for page in found) < 300 << 10


def test_all_who_ask_share_pages_that_are_made_once() -> None:
    """Each request had the ends of all queues collected and encoded, at the same time."""
    may_go, calls = threading.Event(), []

    def told() -> QueueEndsTold:
        calls.append(threading.get_ident())
        assert may_go.wait(60)
        return QueueEndsTold(True, store(5000, 4), 1)

    async def ask() -> None:
        pages = QueueEndPages(GROUP, "n0", told)
        asked = [asyncio.ensure_future(pages.behind(BEFORE_ALL)) for _ in range(4000)]
        await asyncio.sleep(0)
        may_go.set()
        answers = await asyncio.gather(*asked)
        assert len(set(map(id, answers))) == 1
        middle = await pages.behind(("orders-topic-002500", 1))
        assert middle is not answers[0]
        assert middle is await pages.behind(("orders-topic-002500", 1))
        await pages.close()

    asyncio.run(ask())
    assert len(calls) == 1


def test_who_asks_while_a_store_fails_is_told_and_the_next_may_ask_again() -> None:
    failures = [StoreWriteError("the disk is full")]

    def told() -> QueueEndsTold:
        if failures:
            raise failures.pop()
        return QueueEndsTold(True, store(1, 1), 1)

    async def ask() -> None:
        pages = QueueEndPages(GROUP, "n0", told)
        with pytest.raises(StoreWriteError, match="the disk is full"):
            await pages.behind(BEFORE_ALL)
        assert decode(WireQueueEnds, await pages.behind(BEFORE_ALL)).ends == store(1, 1)
        await pages.close()

    asyncio.run(ask())


def test_the_end_does_not_wait_for_a_store_that_is_slow() -> None:
    may_go = threading.Event()

    def told() -> QueueEndsTold:
        assert may_go.wait(60)
        return QueueEndsTold(True, {}, 1)

    async def ask() -> None:
        pages = QueueEndPages(GROUP, "n0", told)
        asked = asyncio.ensure_future(pages.behind(BEFORE_ALL))
        await asyncio.sleep(0)
        await pages.close()
        with pytest.raises(asyncio.CancelledError):
            await asked
        may_go.set()

    asyncio.run(ask())


def test_only_pushes_are_larger_than_a_mebibyte() -> None:
    body = b'{"group":"' + b"x" * (1 << 20) + b'"}'
    for kind in (WireMessage, WireQueueEnds):
        with pytest.raises(FrameError, match="is larger than any"):
            decode(kind, body)


def test_a_code_is_told_with_its_meaning() -> None:
    said = [code_words(code) for code in (400, 402, 415, 999)]
    assert said == ["400 (unknown group)", "402 (unexpected member)", "415 (disk full)", "999"]
