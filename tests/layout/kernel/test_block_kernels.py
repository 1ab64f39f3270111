"""The two implementations of the loops over blocks, held against each other on any bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.kernel.reference import plain
from rmqstore_spark.layout.record import block
from rmqstore_spark.layout.record.encode import encode_records
from rmqstore_spark.layout.spans import U1
from tests.broker.broker import batch
from tests.support.messages.blocks import block_outcome
from tests.support.messages.strategies import INT32, client_records
from tests.support.stores.golden import RecordReport
from tests.support.stores.records import record_batch

both_kernels = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

FIELDS = st.sampled_from([0, 1, 2, 3, 4, 7, 8, 12, 15, 16, 36, 38, 39, 52, 84, 85, 86, 87, 88])
"""Bytes at which a record's lengths and flags stand."""


def assert_same(data: U1, *, v6: bool = False, allowed: int = 0x70D) -> None:
    if not kernel.COMPILED:
        pytest.skip("the compiled kernel was not built on this machine")
    for strict in (True, False):
        seen = [
            block_outcome(module, data, v6=v6, allowed=allowed, strict=strict)
            for module in (kernel._choose(), plain)
        ]
        assert seen[0] == seen[1]


@pytest.mark.threat("The compiled kernel stays within its buffers")
@given(
    messages=st.lists(st.one_of(client_records(), client_records(store_v6=True)), max_size=10),
    damage=st.lists(st.tuples(st.integers(0, 9), FIELDS, st.integers(0, 255)), max_size=2),
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 7)), max_size=2),
    cut=st.sampled_from([0, 0, 0, 1, 40, 95]),
    v6=st.booleans(),
    allowed=st.one_of(st.just(0x70D), st.integers(0, 2**32 - 1)),
)
def test_sound_and_damaged_records(
    messages: list[RecordReport],
    damage: list[tuple[int, int, int]],
    flips: list[tuple[int, int]],
    cut: int,
    v6: bool,
    allowed: int,
) -> None:
    encoded = encode_records(record_batch(messages))
    data = encoded.data.copy()
    for row, at, value in damage if messages else []:
        data[encoded.starts[row % len(messages)] + at] = value
    for at, bit in flips if messages else []:
        data[at % len(data)] ^= 1 << bit
    assert_same(data[: max(len(data) - cut, 0)].copy(), v6=v6, allowed=allowed)


PIECES = st.sampled_from([
    b"\x01", b"\x02", b" ", b"a", b"TAGS", b"KEYS", b"UNIQ_KEY", b"\xff", b"\xe6", b"\xf0\x9f",
    b"\x94\x91", "\U0001f511".encode(), "é鍵".encode(), b"a word of some length", b"__CRC32#\x01",
    b"INNER_MULTI_DISPATCH",
])  # fmt: skip


@pytest.mark.threat("The compiled kernel stays within its buffers")
@given(properties=st.lists(st.lists(PIECES, max_size=30).map(b"".join), min_size=1, max_size=6))
def test_properties_of_any_shape(properties: list[bytes]) -> None:
    messages = [
        RecordReport(**{**vars(MESSAGE), "properties_raw": raw, "sys_flag": 4 * (row % 4)})
        for row, raw in enumerate(properties)
    ]
    assert_same(encode_records(record_batch(messages)).data)


MESSAGE = RecordReport(
    topic="T", queue_id=1, queue_offset=0, physical_offset=0, store_size=0, body_crc=0, flag=0,
    sys_flag=0, born_timestamp=5, born_host="1.2.3.4:5", store_timestamp=0,
    store_host="0.0.0.0:0", reconsume_times=0, prepared_transaction_offset=0, body=b"body",
    body_uncompressed=None, properties={}, properties_raw=b"", msg_id="", crc_ok=True, raw={},
)  # fmt: skip


@pytest.mark.threat("The compiled kernel stays within its buffers")
@given(data=st.binary(max_size=400))
def test_any_bytes(data: bytes) -> None:
    assert_same(np.frombuffer(data, np.uint8))


@both_kernels
@given(
    names=st.lists(
        st.tuples(st.text("abcdefgh", min_size=1, max_size=12), st.integers(0, 5)),
        min_size=1,
        max_size=200,
    )
)
def test_queues_are_numbered_as_they_appear(names: list[tuple[str, int]], each_kernel: str) -> None:
    messages = [
        RecordReport(**{**vars(MESSAGE), "topic": topic, "queue_id": queue_id})
        for topic, queue_id in names
    ]
    found = block.read_block(encode_records(record_batch(messages)).data)
    routes = [block.Route(*name) for name in dict.fromkeys(names)]
    assert list(found.routes) == routes
    assert found.route_of.tolist() == [routes.index(block.Route(*name)) for name in names]


def test_keys_beyond_what_was_made_room_for(each_kernel: str) -> None:
    keys = b"KEYS\x01" + b"k " * 15_000
    messages = [RecordReport(**{**vars(MESSAGE), "properties_raw": keys})] * 5
    found = block.read_block(encode_records(record_batch(messages)).data)
    hashes, rows = block.index_hashes(found.data, found.starts, found.sizes)
    assert np.bincount(rows).tolist() == [15_000] * 5
    assert (np.diff(rows) >= 0).all()
    assert len(set(hashes.tolist())) == 1


@pytest.mark.parametrize("at", [-1, 1, 105, 2**62])
def test_a_place_without_a_record_is_refused(at: int, each_kernel: str) -> None:
    data = encode_records(record_batch([MESSAGE])).data.copy()
    starts = np.array([at], np.int64)
    with pytest.raises(ValueError, match="a record is damaged"):
        block.index_hashes(data, starts, np.array([len(data)], np.int32))
    if at != 1:  # nothing there says that it is none
        with pytest.raises(ValueError, match="outside its buffer"):
            block.stamp_records(data, starts, starts, starts, 0, bytes(8))


def test_a_record_that_has_no_room_for_the_host_is_not_stamped(each_kernel: str) -> None:
    data = encode_records(record_batch([MESSAGE])).data.copy()
    zero = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="8 or 20 bytes"):
        block.stamp_records(data, zero, zero, zero, 0, bytes(9))
    with pytest.raises(ValueError, match="host of the other kind"):
        block.stamp_records(data, zero, zero, zero, 0, bytes(20))
    data[39] |= 0x30
    with pytest.raises(ValueError, match="outside its buffer"):
        block.stamp_records(data[:92].copy(), zero, zero, zero, 0, bytes(20))


@both_kernels
@given(route_of=st.lists(INT32, min_size=1, max_size=5), count=st.integers(0, 3))
def test_queues_that_there_are_not_are_refused(
    route_of: list[int], count: int, each_kernel: str
) -> None:
    n = len(route_of)
    routes = np.array(route_of, np.int32)
    queued = np.ones(n, np.uint8)
    inside = all(0 <= route < count for route in route_of)
    numbers, entries = np.empty(n, np.int64), np.empty(20 * n, np.uint8)
    longs, sizes = np.zeros(n, np.int64), np.zeros(n, np.int32)

    def number() -> None:
        kernel.active.number_rows(routes, queued, np.zeros(count, np.int64), numbers)

    def enter() -> None:
        bounds = np.empty(count + 1, np.int64)
        kernel.active.queue_entries(routes, queued, longs, sizes, longs, entries, bounds)

    for call in (number, enter):
        if inside:
            call()
        else:
            with pytest.raises(ValueError, match="a queue that there is not"):
                call()


def test_arrays_that_are_too_small_are_refused(each_kernel: str) -> None:
    one, four = np.zeros(1, np.int64), np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="too small"):
        kernel.active.queue_entries(
            four,
            np.ones(1, np.uint8),
            one,
            four,
            one,
            np.empty(19, np.uint8),
            np.empty(2, np.int64),
        )
    with pytest.raises(ValueError, match="differ in number"):
        block.stamp_records(np.zeros(200, np.uint8), one, one, np.zeros(2, np.int64), 0, bytes(8))
    with pytest.raises(ValueError, match="a row is asked for"):
        kernel.active.index_hashes(np.zeros(200, np.uint8), one, four, 2, four, four)


@pytest.mark.threat("The compiled kernel stays within its buffers")
@given(
    messages=st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9)), max_size=5),
    damage=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=3),
    cut=st.sampled_from([0, 0, 0, 1, 21, 25]),
    room=st.integers(0, 6),
)
def test_batches_of_producers(
    messages: list[tuple[bytes, bytes]], damage: list[tuple[int, int]], cut: int, room: int
) -> None:
    if not kernel.COMPILED:
        pytest.skip("the compiled kernel was not built on this machine")
    body = bytearray(b"".join(batch([each], properties).body for each, properties in messages))
    for at, value in damage if body else []:
        body[at % len(body)] = value
    data = np.frombuffer(bytes(body[: max(len(body) - cut, 0)]), np.uint8)
    seen = []
    for module in (kernel._choose(), plain):
        starts, lengths = np.zeros((2, room), np.int64), np.zeros((3, room), np.int32)
        outcome = module.split_batch(data, starts[0], lengths[0], starts[1], *lengths[1:])
        seen.append((outcome, starts.tolist(), lengths.tolist()))
    assert seen[0] == seen[1]
