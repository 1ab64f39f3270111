"""Compress and decompress bodies: zlib, LZ4 frames and zstd, with a limit on the output.

Bit 0x1 of sysFlag marks a compressed body; bits 8-10 give the codec. See docs/format.md, "A
CommitLog record"; upstream `MessageSysFlag`, `CompressionType`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import lz4.frame
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import zstandard
from isal import isal_zlib

from rmqstore_spark.errors import CorruptRecordError
from rmqstore_spark.layout.buffers import BytesLike, octets
from rmqstore_spark.layout.constants import (
    COMPRESSED_FLAG,
    COMPRESSION_LZ4,
    COMPRESSION_TYPE_MASK,
    COMPRESSION_TYPE_SHIFT,
    COMPRESSION_ZLIB,
    COMPRESSION_ZLIB_OLD,
    COMPRESSION_ZSTD,
)

NOT_COMPRESSED: Final = -1

MAX_UNPACKED: Final = 64 << 20
"""Largest decompressed body. Readers treat a larger one as damage, and no store accepts it."""

_PIECE: Final = 1 << 20
"""Bytes decompressed at a time if they are only counted."""

_FIRST_GUESS: Final = 1 << 16
"""Output size of a first attempt: reserving the allowed maximum costs more than the work."""


class BodyTooLargeError(CorruptRecordError):
    """A body decompresses to more bytes than its reader allows."""


def compression_type(sys_flag: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return how bodies are compressed: COMPRESSION_ZLIB, _LZ4, _ZSTD or NOT_COMPRESSED.

    Undefined types (4 to 7) are returned unchanged.
    """
    flags = np.asarray(sys_flag, np.int32)
    kind = (flags & COMPRESSION_TYPE_MASK) >> COMPRESSION_TYPE_SHIFT
    kind[kind == COMPRESSION_ZLIB_OLD] = COMPRESSION_ZLIB
    kind[flags & COMPRESSED_FLAG == 0] = NOT_COMPRESSED
    return kind


def compress(body: BytesLike, kind: int) -> bytes:
    """Compress a body.

    Args:
        body: any bytes.
        kind: COMPRESSION_ZLIB, _LZ4 or _ZSTD.

    Raises:
        ValueError: the type does not exist.
    """
    if kind in (COMPRESSION_ZLIB, COMPRESSION_ZLIB_OLD):
        return bytes(isal_zlib.compress(body))
    if kind == COMPRESSION_LZ4:
        return bytes(lz4.frame.compress(body))
    if kind == COMPRESSION_ZSTD:
        return zstandard.ZstdCompressor().compress(octets(body).data)
    raise ValueError(f"unknown compression type {kind}")


def decompress(body: BytesLike, sys_flag: int, max_size: int) -> bytes:
    """Decompress a body; one that is empty or not compressed is returned unchanged.

    Args:
        body: the stored bytes.
        sys_flag: the record's sysFlag.
        max_size: maximum bytes of the result.

    Raises:
        BodyTooLargeError: the result would have more than `max_size` bytes.
        CorruptRecordError: the bytes are damaged or truncated, or the type is unknown.
    """
    raw = octets(body)
    if not sys_flag & COMPRESSED_FLAG or not raw.size:
        return raw.tobytes()
    pieces = list(_unpack(raw, sys_flag, max_size, max_size + 1))
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def unpacked_size(body: BytesLike, sys_flag: int, max_size: int) -> int:
    """Return the decompressed size of a body, which is decompressed and dropped piece by piece.

    Args:
        body, sys_flag, max_size: as in `decompress`; the body is compressed and not empty.

    Raises:
        CorruptRecordError: as in `decompress`.
    """
    return sum(map(len, _unpack(octets(body), sys_flag, max_size, _PIECE)))


def _unpack(
    raw: npt.NDArray[np.uint8], sys_flag: int, max_size: int, piece: int
) -> Iterator[bytes]:
    """Yield the decompressed body in pieces; otherwise as `decompress`."""
    kind = (sys_flag & COMPRESSION_TYPE_MASK) >> COMPRESSION_TYPE_SHIFT
    unpack = _UNPACK.get(kind)
    if unpack is None:
        raise CorruptRecordError(f"the compression type {kind} of a body is unknown")
    size = 0
    for plain in unpack(raw, max_size, piece):
        size += len(plain)
        if size > max_size:
            raise _too_large(raw, max_size)
        yield plain


# Each of these yields pieces of at most `piece` bytes, without a limit on their total.


def _unpack_zlib(raw: npt.NDArray[np.uint8], _max_size: int, piece: int) -> Iterator[bytes]:
    inflate = isal_zlib.decompressobj()
    rest: BytesLike = raw
    while not inflate.eof:
        try:
            plain = bytes(inflate.decompress(rest, piece))
        except isal_zlib.error as error:  # type: ignore[misc]  # its stub declares no class
            raise _damaged("zlib", error) from None
        yield plain
        if len(plain) < piece and not inflate.eof:
            raise _damaged("zlib", "it is cut short")
        rest = inflate.unconsumed_tail


def _unpack_lz4(raw: npt.NDArray[np.uint8], _max_size: int, piece: int) -> Iterator[bytes]:
    frame = lz4.frame.LZ4FrameDecompressor()
    try:
        plain = bytes(frame.decompress(raw, max_length=min(piece, _FIRST_GUESS)))
    except RuntimeError as error:
        raise _damaged("LZ4", error) from None
    if frame.eof and not frame.unused_data:
        yield plain
    else:
        yield from _unpack_stream(raw, "lz4", piece)


def _unpack_zstd(raw: npt.NDArray[np.uint8], max_size: int, piece: int) -> Iterator[bytes]:
    plain = b""
    try:
        promised = zstandard.frame_content_size(raw.data)
        if promised > max_size:
            raise _too_large(raw, max_size)
        if promised <= piece:
            plain = zstandard.ZstdDecompressor().decompress(
                raw.data, max_output_size=min(piece, _FIRST_GUESS), allow_extra_data=False
            )
    except zstandard.ZstdError:
        pass
    if plain:
        yield plain
    else:  # an empty first frame hides the frames after it
        yield from _unpack_stream(raw, "zstd", piece)


def _unpack_stream(raw: npt.NDArray[np.uint8], codec: str, piece: int) -> Iterator[bytes]:
    """Decompress slowly: for large bodies, several frames, and damage."""
    try:
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(raw)), codec) as stream:
            # pyarrow's `read` leaks its buffer if it fails.
            while plain := bytes(stream.read_buffer(piece)):
                yield plain
    except OSError as error:
        raise _damaged(codec, error) from None


_UNPACK: Final[dict[int, Callable[[npt.NDArray[np.uint8], int, int], Iterator[bytes]]]] = {
    COMPRESSION_ZLIB_OLD: _unpack_zlib,
    COMPRESSION_ZLIB: _unpack_zlib,
    COMPRESSION_LZ4: _unpack_lz4,
    COMPRESSION_ZSTD: _unpack_zstd,
}


def _too_large(raw: npt.NDArray[np.uint8], max_size: int) -> BodyTooLargeError:
    return BodyTooLargeError(
        f"a body of {raw.size} bytes decompresses to more than {max_size} bytes"
    )


def _damaged(kind: str, cause: object) -> CorruptRecordError:
    return CorruptRecordError(f"{kind} cannot decompress a body ({cause})")
