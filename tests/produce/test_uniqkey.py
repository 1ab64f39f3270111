from __future__ import annotations

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rmqstore_spark.produce.records import own_address
from rmqstore_spark.produce.uniq_key import UniqKeys

ADDRESS = bytes([10, 0, 0, 7])
INSTANCE = bytes.fromhex("0A0B0C0D")


def month_begin(year: int, month: int) -> int:
    return int(time.mktime((year, month, 1, 0, 0, 0, 0, 0, -1))) * 1000


class Clock:
    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def maker(clock: Clock, address: bytes = ADDRESS) -> UniqKeys:
    return UniqKeys(address, 0x1234, INSTANCE, clock)


def test_the_parts_of_an_id() -> None:
    keys = maker(Clock(month_begin(2024, 5) + 0x01020304))
    assert keys.take(3).to_pylist() == [
        "0A00000712340A0B0C0D010203040000",
        "0A00000712340A0B0C0D010203040001",
        "0A00000712340A0B0C0D010203040002",
    ]
    assert keys.take(1).to_pylist() == ["0A00000712340A0B0C0D010203040003"]


def test_what_rocketmq_reads_out_of_an_id() -> None:
    """`MessageClientIDSetter.getIPFromID`, `getPidFromID`, `getNearlyTimeFromID`."""
    now = month_begin(2024, 5) + 1_234_567_890
    (key,) = maker(Clock(now)).take(1).to_pylist()
    raw = bytes.fromhex(key)
    assert raw[:4] == ADDRESS
    assert int.from_bytes(raw[4:6], "big") == 0x1234
    assert month_begin(2024, 5) + int.from_bytes(raw[10:14], "big") == now


def test_an_ipv6_address_makes_longer_ids() -> None:
    (key,) = maker(Clock(0), address=bytes(range(16))).take(1).to_pylist()
    assert len(key) == 56
    assert key.startswith(bytes(range(16)).hex().upper())


@pytest.mark.parametrize("step", [0, 1, -5000])
def test_ids_stay_apart_when_the_counter_wraps_and_when_the_clock_does_not_go_on(
    step: int,
) -> None:
    clock = Clock(month_begin(2024, 5) + 100_000)
    keys = maker(clock)
    made: list[str] = []
    for _ in range(4):
        made += keys.take(40_000).to_pylist()
        clock.now += step
    assert len(set(made)) == len(made)
    assert made == sorted(made)


def test_a_new_month_begins_anew() -> None:
    clock = Clock(month_begin(2024, 6) - 1)
    keys = maker(clock)
    keys.take(1)
    clock.now += 2
    (key,) = keys.take(1).to_pylist()
    assert key[20:] == "000000010000"


def test_two_makers_and_many_threads_never_make_the_same() -> None:
    makers = [UniqKeys(), UniqKeys()]
    with ThreadPoolExecutor(8) as pool:
        parts = pool.map(lambda n: makers[n % 2].take(2_000).to_pylist(), range(40))
    made = [key for part in parts for key in part]
    assert len(set(made)) == 80_000


def test_this_machine() -> None:
    address = own_address()
    assert address is None or len(address) in (4, 16)
    (key,) = UniqKeys().take(1).to_pylist()
    assert re.fullmatch(r"[0-9A-F]{32}|[0-9A-F]{56}", key)
    size = len(key) // 2 - 12
    assert bytes.fromhex(key)[size : size + 2] == (os.getpid() & 0xFFFF).to_bytes(2, "big")


def test_none() -> None:
    assert UniqKeys().take(0).to_pylist() == []
