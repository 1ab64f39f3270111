"""Reads while a store is written, rolled, committed to and recovered: promises 2 and 3.

Whatever a reader has seen must be there after the writer was killed: else it was no message yet, or
one of a batch that was not published.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.growth import LogGrowth
from tests.fault.claims import Claims
from tests.fault.messages import TOPICS, read_numbers
from tests.fault.remote import RemoteWriter, serve
from tests.fault.rounds.life import Ending, live, settle

pytestmark = pytest.mark.fault

Seen = dict[tuple[str, int], list[int]]


def look_again(store: Store, seen: Seen) -> None:
    """Read all queues; what was seen before must be there, in the same order."""
    store.refresh()
    for queue, numbers in read_numbers(store).items():
        before = seen.get(queue, [])
        assert numbers[: len(before)] == before
        assert numbers == sorted(set(numbers))
        seen[queue] = numbers


def scan_into(store: Store, scanned: set[int]) -> None:
    """Read the log, without the queues."""
    for batch in store.scan():
        for topic, body in zip(batch["topic"].to_pylist(), batch["body"].to_pylist(), strict=True):
            if topic in TOPICS:
                scanned.add(int(body[:12]))


@pytest.mark.parametrize("place", ["", "commit.before_publish:40", "commit.after_publish:40"])
def test_what_was_seen_is_there_after_a_kill(tmp_path: Path, place: str) -> None:
    claims, path = Claims(), tmp_path / "store"
    assert live(path, claims, 0, operations=4).code == 0
    seen: Seen = {}
    scanned: set[int] = set()
    looks = 0
    with ThreadPoolExecutor(1) as threads, Store.open(path) as store:
        tip = LogGrowth(store)
        kill_after = None if place else 2.0
        life: Future[Ending] = threads.submit(
            partial(live, path, claims, 1, kill_after_s=kill_after, failpoint=place, commits=0.5)
        )
        while not life.done():
            look_again(store, seen)
            scan_into(store, scanned)
            while tip.moved():
                tip.dispatched(store.dispatched_end())
            looks += 1
        assert life.result().code == -9
        settling = threads.submit(settle, path)
        while not settling.done():
            with suppress(RmqStoreError):  # a file is being cut: it says so, and no row is wrong
                look_again(store, seen)
                scan_into(store, scanned)
        settling.result()
        store.refresh()
        final = read_numbers(store)
    assert looks > 1
    there = {number for numbers in final.values() for number in numbers}
    assert scanned <= there
    for queue, numbers in seen.items():
        assert final[queue][: len(numbers)] == numbers
    claims.check(path)


def test_reading_through_the_store_process_meanwhile(tmp_path: Path) -> None:
    claims, path = Claims(), tmp_path / "store"
    seen: Seen = {}
    end = threading.Event()
    with serve(path) as process, ThreadPoolExecutor(1) as threads:
        writer = RemoteWriter(process.endpoint, claims)
        writer.make_topics()
        writer.commit(60)
        writing = threads.submit(writer.write_until, end, 3, most=15_000)
        looks = 0
        try:
            with Store.open(process.endpoint) as store:
                while looks < 6 or not writing.done():
                    look_again(store, seen)
                    looks += 1
        finally:
            end.set()
        writing.result()
        assert writer.failures == 0
    settle(path)
    claims.check(path)
    with Store.open(path) as store:
        final = read_numbers(store)
    assert all(final[queue][: len(numbers)] == numbers for queue, numbers in seen.items())
    assert sum(map(len, seen.values())) > 60
