"""Compressed bodies of blocks: what readers could not unpack is refused."""

from __future__ import annotations

import lz4.frame
import pytest
import zstandard

from rmqstore_spark.errors import BlockError
from rmqstore_spark.layout import compression
from rmqstore_spark.layout.record import block as packed
from rmqstore_spark.layout.record.block import Block, check_block
from rmqstore_spark.layout.record.encode import encode_records
from tests.support.stores.golden import RecordReport
from tests.support.stores.records import record_batch

ZLIB, LZ4, ZSTD = 0x301, 0x101, 0x201
BODY = b"a body that becomes smaller " * 40


def message(sys_flag: int, body: bytes) -> RecordReport:
    return RecordReport(
        topic="T", queue_id=0, queue_offset=0, physical_offset=0, store_size=0, body_crc=0, flag=0,
        sys_flag=sys_flag, born_timestamp=5, born_host="1.2.3.4:5", store_timestamp=0,
        store_host="0.0.0.0:0", reconsume_times=0, prepared_transaction_offset=0, body=body,
        body_uncompressed=None, properties={}, properties_raw=b"", msg_id="", crc_ok=True, raw={},
    )  # fmt: skip


def block_of(*messages: tuple[int, bytes]) -> Block:
    data = encode_records(record_batch([message(*each) for each in messages])).data
    return check_block(data, max_body=1 << 22, store_host_v6=False, allowed_sys_flag=0x703)


def compressed(kind: int, body: bytes = BODY) -> bytes:
    return compression.compress(body, kind)


@pytest.mark.parametrize("flags", [0x1, ZLIB, LZ4, ZSTD])
def test_what_readers_unpack_is_taken(flags: int, each_kernel: str) -> None:
    kind = flags >> 8
    packed.check_bodies(
        block_of(
            (0, b"plain"), (flags, compressed(kind)), (flags, compressed(kind, b"")), (0x700, b"x")
        )
    )


SKIPPED = b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip"
"""A frame of both LZ4 and zstd that holds no data."""


@pytest.mark.parametrize(
    ("flags", "body", "cause"),
    [
        (0x1, b"plain", "it is not"),
        (0x1, b"", "it is not"),
        (ZLIB, b"\x78\x9c", "it is not"),
        (ZLIB, b"\x78\x9cnothing", "zlib cannot decompress a body"),
        (ZLIB, compressed(3)[:-1], "cut short"),
        (ZLIB, compressed(3)[:-1] + b"\x00", "zlib cannot decompress a body"),
        (LZ4, compressed(3), "it is not"),
        (LZ4, compressed(1)[:-3], "lz4 cannot decompress a body"),
        (LZ4, SKIPPED + lz4.frame.compress(BODY), "it is not"),
        (ZSTD, compressed(2)[:-3], "zstd cannot decompress a body"),
        (ZSTD, compressed(2) + b"no frame", "zstd cannot decompress a body"),
        (ZSTD, SKIPPED + zstandard.compress(BODY), "it is not"),
        (0x401, compressed(3), "unknown compression type 4"),
        (0x701, compressed(3), "unknown compression type 7"),
        (
            ZSTD,
            compressed(2, bytes(compression.MAX_UNPACKED + 1)),
            "decompresses to more than 67108864",
        ),
    ],
)
def test_what_readers_or_a_verification_refuse_is_refused(
    flags: int, body: bytes, cause: str, each_kernel: str
) -> None:
    block = block_of((0, b"plain"), (ZLIB, compressed(3)), (flags, body), (0, b"plain"))
    with pytest.raises(BlockError, match=cause) as caught:
        packed.check_bodies(block)
    error = caught.value
    assert (error.row, error.status) == (2, "MESSAGE_ILLEGAL")
    assert error.at == block.starts[2]


@pytest.mark.threat("What the process receives")
def test_a_block_of_bombs_is_unpacked_so_far_and_no_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unpacked = []

    def counted(body: bytes, flags: int, most: int) -> int:
        unpacked.append(compression.unpacked_size(body, flags, most))
        return unpacked[-1]

    monkeypatch.setattr(packed, "unpacked_size", counted)
    bomb = compressed(2, bytes(compression.MAX_UNPACKED))
    with pytest.raises(BlockError, match="send fewer messages at a time") as caught:
        packed.check_bodies(block_of(*[(ZSTD, bomb)] * 100))
    assert caught.value.row == 4
    assert sum(unpacked) <= packed.MAX_BLOCK_UNPACKED + compression.MAX_UNPACKED
