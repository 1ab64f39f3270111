"""The CRC-32 of spans, by the compiled kernel and by the reference, against zlib's."""

from __future__ import annotations

import zlib

import numpy as np

from rmqstore_spark.layout.spans import Spans


def test_crcs_of_all_lengths_are_those_of_zlib(each_kernel: str) -> None:
    """A span takes other ways from 16, 64 and 256 bytes on, and its last bytes another one."""
    data = np.random.default_rng(5).integers(0, 256, 6000, np.uint8)
    lengths = np.array([*range(1100), 4095, 4096, 4097, 5000], np.int32)
    starts = np.arange(len(lengths), dtype=np.int64) % 67
    expected = [
        zlib.crc32(data[start : start + length].tobytes())
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]
    assert Spans(data, starts, lengths).crc32().tolist() == expected
