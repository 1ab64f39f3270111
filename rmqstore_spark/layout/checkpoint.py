r"""The checkpoint and the flush mark: how far a store's files are known to be on disk.

The checkpoint holds storeTimestamps:

    physicMsgTimestamp 8 | logicsMsgTimestamp 8 | indexMsgTimestamp 8
    | masterFlushedOffset 8 | confirmPhyOffset 8 | zeros up to 4096

The last two belong to 5.x; 4.9 leaves them zero. On a slave, dispatching a message advances the
first. See docs/format.md, "A store directory"; upstream `StoreCheckpoint`.

The flush mark holds a physical offset of the log:

    STORE/rmqstore/flushed: "{physical offset} {bytes of a segment} {CRC32 of both}\n", with 20, 20
    and 10 decimal digits

Our writer rewrites it in place after each flush of the log, and does not flush it. So after a kill
it is exact, and after a power cut it is older, never ahead. A log that ends before it has lost
messages that were on disk. See docs/format.md, "Start, recovery".
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import astuple, dataclass
from typing import Final

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.layout.buffers import BytesLike, octets

CHECKPOINT_SIZE: Final = 4096
GRACE_MS: Final = 3_000
"""A broker does not trust the last three seconds before its checkpoint."""

_FIELDS: Final = struct.Struct(">5q")
_FIELDS_OF_4: Final = struct.Struct(">3q")


@dataclass(frozen=True)
class Checkpoint:
    """The fields of a checkpoint; times are storeTimestamps in milliseconds.

    Attributes:
        physic_msg_timestamp: storeTimestamp of a message known to be flushed to the CommitLog.
        logics_msg_timestamp: storeTimestamp of a message known to be dispatched, with its queue
            entry flushed.
        index_msg_timestamp: storeTimestamp of the last message in the last full index file.
        master_flushed_offset: 5.x: the offset up to which the master has flushed.
        confirm_phy_offset: 5.x: the offset that all in-sync replicas have confirmed.
    """

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0

    @classmethod
    def decode(cls, data: BytesLike, *, file: str = "") -> Checkpoint:
        """Decode the checkpoint at the start of `data`; bytes after its fields are ignored.

        Raises:
            CorruptStoreError: `data` is too short; the message names `file`.
        """
        raw = octets(data)[: _FIELDS.size].tobytes()
        if len(raw) < _FIELDS_OF_4.size:
            raise CorruptStoreError(
                f"a checkpoint must have at least {_FIELDS_OF_4.size} bytes, not {len(raw)}",
                file=file,
                remedy="Remove the file: a store can be read without it.",
            )
        return cls(*_FIELDS.unpack(raw.ljust(_FIELDS.size, b"\0")))

    def encode(self) -> bytes:
        """Return the file's bytes."""
        return _FIELDS.pack(*astuple(self)).ljust(CHECKPOINT_SIZE, b"\0")


FLUSH_MARK_SIZE: Final = 53
_FORM: Final = re.compile(rb"(\d{20} \d{20}) (\d{10})\n")


@dataclass(frozen=True)
class FlushMark:
    """A flush mark.

    Attributes:
        offset: physical offset up to which the log is on disk.
        segment_size: bytes of a segment.
    """

    offset: int
    segment_size: int

    @classmethod
    def decode(cls, data: bytes) -> FlushMark | None:
        """Return the mark; None if the bytes are not one."""
        found = _FORM.fullmatch(data)
        if found is None or zlib.crc32(found[1]) != int(found[2]):
            return None
        offset, size = map(int, found[1].split())
        return cls(offset, size)

    def encode(self) -> bytes:
        """Return the file's bytes."""
        numbers = b"%020d %020d" % (self.offset, self.segment_size)
        return b"%b %010d\n" % (numbers, zlib.crc32(numbers))
