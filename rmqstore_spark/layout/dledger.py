"""Decode DLedger's log entries, which wrap CommitLog records, and its index.

    entry    magic 4 = 1 | size 4 | index 8 | term 8 | position 8 | channel 4 | chainCrc 4
             | bodyCrc 4 | bodyLength 4 | an ordinary CommitLog record
    unit     magic 4 = 1 | position 8 | size 4 | index 8 | term 8            big-endian, signed

`size` includes the 48 bytes of the header. Magic -1 and the remaining size close a segment. The
unit of entry n is the n-th in the index files. A text file holds the number of the last committed
entry; later entries may still be undone. See docs/format.md, "DLedger".
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.layout.buffers import BytesLike, records_at, records_in

ENTRY_MAGIC: Final = 1
BLANK_MAGIC: Final = -1
BLANK_SIZE: Final = 8
"""Bytes that are left behind every entry of a segment: those of a blank that closes it."""

ENTRY_HEADER_DTYPE: Final = np.dtype(
    [
        ("magic", ">i4"),
        ("size", ">i4"),
        ("index", ">i8"),
        ("term", ">i8"),
        ("position", ">i8"),
        ("channel", ">i4"),
        ("chainCrc", ">i4"),
        ("bodyCrc", ">i4"),
        ("bodyLength", ">i4"),
    ]
)
ENTRY_HEADER_SIZE: Final = ENTRY_HEADER_DTYPE.itemsize

REPAIR: Final = (
    "Move the folder dledger-ID of this member away, and start it: it then joins its group without "
    "entries, and gets them from the leader (docs/operate.md, Repair a member)."
)
"""What to do with a member that has lost what its log does not tell."""

MOST_ENTRY_SIZE: Final = 4 << 20
"""Bytes of the largest entry that members of RocketMQ take (`DLedgerMmapFileStore`)."""

INDEX_UNIT_DTYPE: Final = np.dtype(
    [("magic", ">i4"), ("position", ">i8"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8")]
)
INDEX_UNIT_SIZE: Final = INDEX_UNIT_DTYPE.itemsize

_UNIT: Final = struct.Struct(">iqiqq")
_BLANK: Final = struct.Struct(">ii")

_COMMITTED_INDEX: Final = re.compile(
    r"^[ \t]*committedIndex[ \t]*[=:][ \t]*(-?[0-9]{1,19})[ \t]*\r?\n", re.MULTILINE
)
_CHECK: Final = re.compile(r"^#check=([0-9a-f]{8})\n", re.MULTILINE)
_MAX_TEXT: Final = 1 << 16


@dataclass(frozen=True)
class IndexUnit:
    """The location of one entry.

    Attributes:
        position: position of its header in the whole log.
        size: bytes of header and record.
        index: number of the entry.
        term: term of the leader that wrote it.
    """

    position: int
    size: int
    index: int
    term: int

    @property
    def end(self) -> int:
        """The position after the entry."""
        return self.position + self.size


def decode_entry_headers(
    data: BytesLike, offsets: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.bool_]]:
    """Decode the headers that begin at `offsets` in `data`.

    Returns:
        headers: one per offset; zeros where `data` is too short.
        valid: whether there is an entry's header with consistent lengths. Whether its record is
            whole is not checked.
    """
    headers, valid = records_at(data, ENTRY_HEADER_DTYPE, offsets)
    length = headers["bodyLength"].astype(np.int64)
    valid &= headers["magic"] == ENTRY_MAGIC
    valid &= (length >= 0) & (headers["size"] == length + ENTRY_HEADER_SIZE)
    return headers, valid


def encode_index_unit(unit: IndexUnit) -> bytes:
    """Return the unit of an entry."""
    return _UNIT.pack(ENTRY_MAGIC, unit.position, unit.size, unit.index, unit.term)


def encode_blank(size: int) -> bytes:
    """Return what closes a segment with `size` bytes left; zeros follow."""
    return _BLANK.pack(BLANK_MAGIC, size)


def entry_position(end: int, size: int, segment_size: int) -> int:
    """Return where the next entry begins: behind the last one, or at the next segment.

    Args:
        end: the position behind the last entry.
        size: bytes of the new one, with its header.
        segment_size: bytes of a segment.
    """
    left = segment_size - end % segment_size
    return end if size + BLANK_SIZE <= left else end + left


def index_unit_position(index: int) -> int:
    """Return the byte offset of an entry's unit in the concatenated index files."""
    return index * INDEX_UNIT_SIZE


def decode_index_units(data: BytesLike) -> npt.NDArray[np.void]:
    """Return a view of the whole units in `data`; unwritten units are zeros."""
    return records_in(data, INDEX_UNIT_DTYPE)


def decode_index_unit(data: BytesLike, index: int, *, file: str = "") -> IndexUnit:
    """Decode the unit of entry `index`, at the start of `data`.

    Raises:
        CorruptStoreError: it is not that entry's unit; the message names `file`.
    """
    units = decode_index_units(data)
    if len(units):
        magic, position, size, found, term = units[0].item()
        if magic == ENTRY_MAGIC and found == index and position >= 0 and size > ENTRY_HEADER_SIZE:
            return IndexUnit(position, size, found, term)
    raise CorruptStoreError(
        f"no valid index unit of DLedger entry {index}",
        file=file,
        offset=index_unit_position(index),
    )


def encode_committed_index(committed: int, end: int) -> bytes:
    """Return the text of `checkpoint`, of the same size for all numbers from 0 on.

    It can be written over another one while others read it: a comment has a checksum of it.

    Args:
        committed: number of the last committed entry.
        end: number of the last entry.
    """
    text = b"committedIndex=%019d\nendIndex=%019d\n" % (committed, end)
    return text + b"#check=%08x\n" % zlib.crc32(text)


def parse_committed_index(text: str, *, file: str = "") -> int:
    """Return the number of the last committed entry from the text of DLedger's `checkpoint`.

    The line must end with a newline: the number in a truncated file could lack digits. If there is
    a checksum, it must be right: see `encode_committed_index`.

    Returns:
        -1 if nothing is committed yet.

    Raises:
        CorruptStoreError: the text does not contain the number; the error names `file`.
    """
    lines = _COMMITTED_INDEX.findall(text) if len(text) <= _MAX_TEXT else []
    index = int(lines[-1]) if lines else -2
    check = _CHECK.search(text)
    if check is not None and int(check[1], 16) != zlib.crc32(text[: check.start()].encode()):
        index = -2
    if not -1 <= index < 1 << 63:
        raise CorruptStoreError(
            "DLedger's checkpoint has no line committedIndex=NUMBER",
            file=file,
            remedy="Only this line shows which entries are committed. If there is a checkpoint.bak "
            f"that has it, copy that over the file. Otherwise repair the member. {REPAIR}",
        )
    return index
