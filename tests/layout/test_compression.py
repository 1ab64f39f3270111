from __future__ import annotations

import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import lz4.frame
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.errors import CorruptRecordError
from rmqstore_spark.layout import compression
from rmqstore_spark.layout.constants import (
    COMPRESSED_FLAG,
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZLIB_OLD,
    COMPRESSION_ZSTD,
)
from tests.support.messages.compressing import flags_of_type
from tests.support.stores.golden import load_records

KINDS = [COMPRESSION_ZLIB_OLD, COMPRESSION_ZLIB, COMPRESSION_LZ4, COMPRESSION_ZSTD]
MAX = 1 << 26

BODIES = st.one_of(
    st.binary(max_size=200),
    st.builds(
        lambda piece, count: piece * count,
        st.binary(min_size=1, max_size=50),
        st.integers(1, 20_000),
    ),
)


@pytest.mark.parametrize("name", ["flags", "live", "ha-master"])
def test_golden_bodies_become_what_rocketmq_made_of_them(
    golden: Callable[[str], Path], name: str
) -> None:
    records = [r for r in load_records(golden(name)) if r.sys_flag & COMPRESSED_FLAG]
    assert records
    for record in records:
        plain = compression.decompress(record.body, record.sys_flag, MAX)
        assert plain == record.body_uncompressed
    if name == "flags":
        kinds = compression.compression_type(np.array([r.sys_flag for r in records]))
        assert set(kinds.tolist()) == {COMPRESSION_ZLIB, COMPRESSION_LZ4, COMPRESSION_ZSTD}


@given(BODIES, st.sampled_from(KINDS), st.integers(0, 100))
def test_round_trip_within_the_bound(body: bytes, kind: int, more: int) -> None:
    flags = flags_of_type(kind)
    packed = compression.compress(body, kind)
    assert compression.decompress(packed, flags, len(body) + more) == body
    assert compression.decompress(np.frombuffer(packed, np.uint8), flags, MAX) == body
    if body:
        with pytest.raises(
            CorruptRecordError, match=f"decompresses to more than {len(body) - 1} bytes"
        ):
            compression.decompress(packed, flags, len(body) - 1)


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        (COMPRESSION_ZLIB_OLD, 0x1),
        (COMPRESSION_ZLIB, 0x301),
        (COMPRESSION_LZ4, 0x101),
        (COMPRESSION_ZSTD, 0x201),
    ],
)
def test_flags_are_those_that_clients_set(kind: int, flags: int) -> None:
    assert flags_of_type(kind) == flags


def test_types_of_a_column() -> None:
    flags = np.array([0, 0x300, 0x1, 0x301, 0x101 | 0x30, 0x201 | 0x8, 0x401], np.int32)
    kept = flags.copy()
    assert compression.compression_type(flags).tolist() == [-1, -1, 3, 3, 1, 2, 4]
    assert flags.tolist() == kept.tolist()


def test_bodies_that_are_not_compressed_or_empty_stay() -> None:
    assert compression.decompress(b"plain", 0x300, 2) == b"plain"
    assert compression.decompress(b"", 0x301, 0) == b""


@pytest.mark.parametrize("kind", [4, 5, 6, 7])
def test_unknown_types_are_errors(kind: int) -> None:
    with pytest.raises(CorruptRecordError, match=f"compression type {kind} of a body is unknown"):
        compression.decompress(b"x", flags_of_type(kind), MAX)
    with pytest.raises(ValueError, match=f"unknown compression type {kind}"):
        compression.compress(b"x", kind)


def _without_size(body: bytes, kind: int) -> bytes:
    """Compressed so that the frame does not tell its size, as Java's streams do it."""
    if kind == COMPRESSION_LZ4:
        return bytes(lz4.frame.compress(body, store_size=False))
    if kind == COMPRESSION_ZSTD:
        return zstandard.ZstdCompressor(write_content_size=False).compress(body)
    return zlib.compress(body)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0, 1, 100, 65_535, 65_536, 65_537, 300_000, 5_000_000])
def test_streams_that_do_not_tell_their_size(kind: int, size: int) -> None:
    body = np.random.default_rng(size).integers(0, 9, size, np.uint8).tobytes()
    packed = _without_size(body, kind)
    flags = flags_of_type(kind)
    assert compression.decompress(packed, flags, size) == body


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_cut_short_anywhere_is_an_error(kind: int) -> None:
    for packed in (compression.compress(b"some body " * 20, kind), _without_size(b"ab" * 99, kind)):
        for cut in range(1, len(packed)):
            with pytest.raises(CorruptRecordError, match="cannot decompress a body"):
                compression.decompress(packed[:cut], flags_of_type(kind), MAX)


@pytest.mark.threat("Compressed bodies are bounded")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tells_size", [True, False])
def test_a_bomb_is_refused_before_it_goes_off(kind: int, tells_size: bool) -> None:
    bomb = b"\0" * (200 << 20)
    packed = compression.compress(bomb, kind) if tells_size else _without_size(bomb, kind)
    del bomb
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordError, match="decompresses to more than 1000000 bytes"):
            compression.decompress(packed, flags_of_type(kind), 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.threat("Compressed bodies are bounded")
def test_a_frame_that_lies_about_its_size_allocates_nothing() -> None:
    # magic, descriptor (8-byte size, single segment), a size of 2**62
    frame = bytes.fromhex("28b52ffd e0") + (1 << 62).to_bytes(8, "little") + b"\1\0\0"
    with pytest.raises(CorruptRecordError):
        compression.decompress(frame, 0x201, MAX)


@pytest.mark.parametrize("kind", [COMPRESSION_LZ4, COMPRESSION_ZSTD])
def test_frames_one_behind_the_other_are_one_body(kind: int) -> None:
    packed = compression.compress(b"first ", kind) + compression.compress(b"second" * 50_000, kind)
    flags = flags_of_type(kind)
    assert compression.decompress(packed, flags, MAX) == b"first " + b"second" * 50_000
    with pytest.raises(CorruptRecordError, match="decompresses to more than 300005 bytes"):
        compression.decompress(packed, flags, 300_005)
    with pytest.raises(CorruptRecordError, match="cannot decompress a body"):
        compression.decompress(packed + b"no frame", flags, MAX)


@pytest.mark.parametrize("kind", [COMPRESSION_LZ4, COMPRESSION_ZSTD])
def test_many_empty_frames_are_gone_through_once(kind: int) -> None:
    packed = _without_size(b"", kind) * 200_000 + compression.compress(b"end", kind)
    assert compression.decompress(packed, flags_of_type(kind), 3) == b"end"


@pytest.mark.threat("Compressed bodies are bounded")
@given(st.binary(max_size=300), st.sampled_from(KINDS), st.integers(0, 1000))
def test_any_bytes_are_decompressed_or_refused(data: bytes, kind: int, max_size: int) -> None:
    try:
        plain = compression.decompress(data, flags_of_type(kind), max_size)
    except CorruptRecordError:
        return
    assert len(plain) <= max_size


@given(st.sampled_from(KINDS), st.data())
def test_a_changed_byte_is_refused_or_stays_in_bounds(kind: int, data: st.DataObject) -> None:
    packed = bytearray(compression.compress(b"abcabcabcd" * 50, kind))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        plain = compression.decompress(packed, flags_of_type(kind), 1000)
    except CorruptRecordError:
        return
    assert len(plain) <= 1000


def outcome(unpack: Callable[[bytes, int, int], int], body: bytes, flags: int, most: int) -> object:
    try:
        return unpack(body, flags, most)
    except CorruptRecordError as error:
        return str(error)


@given(
    body=BODIES,
    kind=st.one_of(st.sampled_from(KINDS), st.integers(4, 7)),
    frames=st.integers(1, 2),
    damage=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), max_size=2),
    cut=st.sampled_from([0, 0, 0, 1, 4, 9]),
    more=st.sampled_from([b"", b"", b"no frame"]),
    spare=st.sampled_from([0, 1, -1, 1000]),
    piece=st.sampled_from([1, 7, 4096, 1 << 20]),
)
def test_a_body_that_is_only_counted_is_refused_where_one_that_is_kept_would_be(
    body: bytes,
    kind: int,
    frames: int,
    damage: list[tuple[int, int]],
    cut: int,
    more: bytes,
    spare: int,
    piece: int,
) -> None:
    packed = bytearray(compression.compress(body, kind if kind < 4 else 3) * frames)
    for at, flip in damage:
        packed[at % len(packed)] ^= flip
    sent = bytes(packed[: max(1, len(packed) - cut)]) + more
    flags, most = flags_of_type(kind), max(0, len(body) * frames + spare)
    piece = max(piece, len(body) // 50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "_PIECE", piece)
        counted = outcome(compression.unpacked_size, sent, flags, most)
    kept = outcome(lambda *a: len(compression.decompress(*a)), sent, flags, most)
    assert isinstance(counted, str) == isinstance(kept, str), (counted, kept)
    if isinstance(kept, int):
        assert counted == kept


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_a_bomb_is_counted_without_the_memory_that_it_asks_for(kind: int) -> None:
    packed = compression.compress(bytes(MAX), kind)
    tracemalloc.start()
    try:
        assert compression.unpacked_size(packed, flags_of_type(kind), MAX) == MAX
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
    with pytest.raises(CorruptRecordError, match="decompresses to more than"):
        compression.unpacked_size(packed, flags_of_type(kind), MAX - 1)


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_promise_8_bodies_that_are_refused_leave_no_memory_behind(kind: int) -> None:
    damaged, size = compression.compress(b"a body " * 60, kind)[:-5], 1 << 20

    def refused() -> None:
        with pytest.raises(CorruptRecordError):
            compression.decompress(damaged, 1 | kind << 8, size)

    refused()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(5):
            refused()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < size
