"""Delayed messages that another member delivered while this one's file of progress stood still."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.engine.delay.copies import Unmatched
from rmqstore_spark.layout.fields import PREPARED_OFFSET_AT
from rmqstore_spark.reader import Store
from tests.engine.group.stores import problems_of
from tests.support.processes.delaying import delayed, delayed_config, rows_of
from tests.support.processes.ports import free_port
from tests.support.stores.storing import Clock
from tests.support.waiting import eventually

PATIENCE = 60.0
HOUR = 3_600_000
SEGMENT = 65536


@pytest.fixture
def config() -> StoreConfig:
    """A group of one, with three levels: a second, five seconds, an hour."""
    return delayed_config(
        enableDLegerCommitLog="true", dLegerGroup="orders", dLegerSelfId="n0",
        dLegerPeers=f"n0-127.0.0.1:{free_port()}", dLegerBindAddress="127.0.0.1",
        dLegerHeartbeatInterval=100, mappedFileSizeCommitLog=SEGMENT,
    )  # fmt: skip


@pytest.fixture
def clock() -> Clock:
    """It begins now: an election has the time of the machine."""
    return Clock(time.time_ns() // 1_000_000)


@contextmanager
def leader(path: Path, config: StoreConfig, clock: Clock) -> Iterator[StoreWriter]:
    with StoreWriter.open(path, config, clock=clock) as store:
        eventually(lambda: store.state == "RUNNING", PATIENCE)
        yield store


def put(store: StoreWriter, bodies: Sequence[bytes], level: int) -> None:
    assert store.put_batch(delayed(bodies, level)).ok


def await_waiting(store: StoreWriter, *counts: int) -> None:
    """Wait until so many messages of each level wait."""
    wanted = {str(level): count for level, count in enumerate(counts, 1)}
    eventually(lambda: store.stats()["delayedWaiting"] == wanted, PATIENCE)


@contextmanager
def as_a_broker(path: Path) -> Iterator[None]:
    """Let what a store delivers meanwhile look as if a broker had led, and delivered it.

    Its copies do not name the messages that waited, and the file is what it was before.
    """
    file = path / "config" / "delayOffset.json"
    kept = path / "kept.json"
    shutil.copy(file, kept)
    before = len(rows_of(path, "T"))
    yield
    kept.replace(file)
    file.with_name(f"{file.name}.bak").unlink()
    copies = sorted(rows_of(path, "T"), key=lambda row: int(row["physicalOffset"]))[before:]
    with Store.open(path) as store:
        places = [store.log.place(row["physicalOffset"]) for row in copies]
    for name, at in places:
        with open(name, "r+b") as segment:
            segment.seek(at + PREPARED_OFFSET_AT)
            segment.write(bytes(8))


def counted(path: Path) -> Counter[bytes]:
    return Counter(row["body"] for row in rows_of(path, "T"))


def test_what_a_broker_delivered_meanwhile_is_not_delivered_again(
    tmp_path: Path, config: StoreConfig, clock: Clock
) -> None:
    path = tmp_path / "s"
    with leader(path, config, clock) as store:
        put(store, [b"far"], 3)
        put(store, [b"ours"], 1)
        clock.now += 1000
        await_waiting(store, 0, 0, 1)
        put(store, [b"a", b"b"], 1)
        put(store, [b"c", b"d", b"e"], 2)
    with as_a_broker(path):
        clock.now += 5000
        with leader(path, config, clock) as store:
            await_waiting(store, 0, 0, 1)
            put(store, [b"f"], 1)
            clock.now += 1000
            await_waiting(store, 0, 0, 1)
            put(store, [b"g"], 1)
            put(store, [b"h"], 2)
    clock.now += 5000
    for _ in range(2):  # and after a restart
        with leader(path, config, clock) as store:
            await_waiting(store, 0, 0, 1)
    with leader(path, config, clock) as store:
        clock.now += HOUR
        await_waiting(store, 0, 0, 0)
    wanted = Counter([b"far", b"ours", *(bytes([letter]) for letter in b"abcdefgh")])
    assert counted(path) == wanted
    assert not problems_of(path, delay_levels="1s 5s 1h")


def test_of_messages_that_are_the_same_those_without_a_copy_are_delivered(
    tmp_path: Path, config: StoreConfig, clock: Clock
) -> None:
    path = tmp_path / "s"
    with leader(path, config, clock) as store:
        put(store, [b"same"], 1)
        clock.now += 1000
        await_waiting(store, 0, 0, 0)
        put(store, [b"same"] * 2, 1)
    with as_a_broker(path):
        clock.now += 1000
        with leader(path, config, clock) as store:
            await_waiting(store, 0, 0, 0)
            put(store, [b"same"] * 3, 1)
    clock.now += 1000
    with leader(path, config, clock) as store:
        await_waiting(store, 0, 0, 0)
        assert store.stats()["delayedDelivered"] == 3
    assert counted(path) == {b"same": 6}


def test_copies_are_matched_in_the_order_of_the_messages() -> None:
    copies = Unmatched(np.array([7, 3, 7, 9], np.uint64))
    assert copies.match(np.array([1, 7, 9, 7, 7], np.uint64)).tolist() == [0, 1, 1, 1, 0]
    assert copies
    assert copies.match(np.array([7, 3, 9], np.uint64)).tolist() == [0, 1, 0]
    assert not copies
    assert not Unmatched(np.empty(0, np.uint64))
    assert not Unmatched(np.empty(0, np.uint64)).match(np.array([1], np.uint64)).any()
