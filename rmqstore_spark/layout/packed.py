"""Check compressed bodies in records: whether they are what their sysFlag says.

See docs/format.md, "A CommitLog record"; `compression` handles single bodies.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.errors import BlockError, CorruptRecordError
from rmqstore_spark.layout.compression import MAX_UNPACKED, compression_type, unpacked_size
from rmqstore_spark.layout.constants import (
    COMPRESSED_FLAG,
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
)
from rmqstore_spark.layout.fields import SYS_FLAG_AT
from rmqstore_spark.layout.kernel.reference.parse import field_at
from rmqstore_spark.layout.record.block import Block
from rmqstore_spark.layout.record.format import decode_records
from rmqstore_spark.layout.spans import I4, Spans

MAX_BLOCK_UNPACKED: Final = 4 * MAX_UNPACKED
"""Maximum bytes of all decompressed bodies of a block together."""

_HEAD: Final = 4
_LZ4_MAGIC: Final = 0x04224D18
_ZSTD_MAGIC: Final = 0x28B52FFD


def not_packed(bodies: Spans, kind: I4) -> npt.NDArray[np.bool_]:
    """Return which bodies do not begin like a body of their compression type.

    Args:
        bodies: n, as they are stored.
        kind: n, the type of each; see `compression.compression_type`.
    """
    wrong = bodies.lengths < _HEAD
    first = field_at(bodies.buffer, np.where(wrong, 0, bodies.starts), _HEAD, ">u4")
    zlib = (first >> 24 & 0x0F == 8) & ((first >> 16) % 31 == 0)
    begins = np.select(
        [kind == COMPRESSION_LZ4, kind == COMPRESSION_ZSTD],
        [first == _LZ4_MAGIC, first == _ZSTD_MAGIC],
        zlib,
    )
    return wrong | ~begins


def check_bodies(block: Block) -> None:
    """Check that readers can decompress the compressed bodies of a checked block.

    Each body is decompressed piece by piece, and the pieces are dropped. This takes little memory,
    and time in proportion to the output, which is limited to `MAX_BLOCK_UNPACKED`.

    Raises:
        BlockError: a body is not compressed as its sysFlag says, is damaged, or decompresses to
            more than `MAX_UNPACKED` bytes; or all of them exceed `MAX_BLOCK_UNPACKED`.
    """
    flags = field_at(block.data, block.starts + SYS_FLAG_AT, 4, ">i4").astype(np.int32)
    rows = np.flatnonzero(flags & COMPRESSED_FLAG)
    starts, flags = block.starts[rows], flags[rows]
    bodies = decode_records(block.data, starts, block.sizes[rows]).body
    kinds = compression_type(flags)
    plain = not_packed(bodies, kinds)
    total = 0
    for number, row in enumerate(rows.tolist()):
        cause = ""
        if kinds[number] > COMPRESSION_ZLIB:
            cause = f"its sysFlag has the unknown compression type {kinds[number]}"
        elif plain[number]:
            cause = "its sysFlag says that its body is compressed, but it is not"
        else:
            begin = int(bodies.starts[number])
            stored = block.data[begin : begin + int(bodies.lengths[number])]
            try:
                total += unpacked_size(stored, int(flags[number]), MAX_UNPACKED)
            except CorruptRecordError as error:
                cause = f"readers could not decompress it: {error.cause}"
        if total > MAX_BLOCK_UNPACKED:
            cause = (
                "with it, the bodies of the block decompress to more than "
                f"{MAX_BLOCK_UNPACKED} bytes: send fewer messages at a time"
            )
        if cause:
            raise BlockError(row, int(starts[number]), PutStatus.MESSAGE_ILLEGAL, cause)
