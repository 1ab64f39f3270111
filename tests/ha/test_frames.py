"""The bytes on the wire, however the stream is cut."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.errors import ReplicationError
from rmqstore_spark.ha.frames import (
    MOST_FRAME_BYTES,
    FrameDecoder,
    ReportDecoder,
    encode_header,
    encode_report,
)

OFFSETS = st.integers(0, 2**63 - 1 - (1 << 20))
CUTS = st.lists(st.integers(0, 4000), max_size=20)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(at, len(data)) for at in cuts), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges)]


@given(st.lists(st.tuples(OFFSETS, st.binary(max_size=200)), max_size=20), CUTS)
def test_frames_are_the_same_however_the_stream_is_cut(
    frames: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(encode_header(offset, len(body)) + body for offset, body in frames)
    decoder = FrameDecoder()
    found: list[tuple[int, bytes]] = []
    for part in cut(stream, cuts):
        for offset, data in decoder.feed(memoryview(part)):
            last = found[-1] if found else (-1, b"")
            if len(data) and last[1] and last[0] + len(last[1]) == offset:
                found[-1] = last[0], last[1] + bytes(data)
            else:
                found.append((offset, bytes(data)))
    joined: list[tuple[int, bytes]] = []
    for offset, body in frames:
        last = joined[-1] if joined else (-1, b"")
        if body and last[1] and last[0] + len(last[1]) == offset:
            joined[-1] = last[0], last[1] + body
        else:
            joined.append((offset, body))
    assert found == joined


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50), CUTS)
def test_reports_are_the_same_however_the_stream_is_cut(
    offsets: list[int], cuts: list[int]
) -> None:
    stream = b"".join(map(encode_report, offsets))
    decoder = ReportDecoder()
    found = [offset for part in cut(stream, cuts) for offset in decoder.feed(part)]
    assert found == offsets


@pytest.mark.parametrize(
    ("offset", "size"),
    [(-1, 0), (-(2**63), 100), (0, -1), (0, MOST_FRAME_BYTES + 1), (0, 2**31 - 1)],
)
def test_what_is_not_a_frame_is_refused_before_its_bytes_come(offset: int, size: int) -> None:
    with pytest.raises(ReplicationError, match="is not a frame"):
        list(FrameDecoder().feed(memoryview(struct.pack(">qi", offset, size))))
