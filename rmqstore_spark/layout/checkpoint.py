"""The checkpoint: the storeTimestamps up to which a store's files are known to be on disk.

    physicMsgTimestamp 8 | logicsMsgTimestamp 8 | indexMsgTimestamp 8
    | masterFlushedOffset 8 | confirmPhyOffset 8 | zeros up to 4096

The last two belong to 5.x; 4.9 leaves them zero. On a slave, dispatching a message advances the
first. See docs/format.md, "A store directory"; upstream `StoreCheckpoint`.
"""

from __future__ import annotations

import struct
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
