"""This store, in the process: `StoreWriter`, and `reader.Store`."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

import rmqstore_spark
from benchmarks.stores.kind import Opening
from benchmarks.stores.messages import FIRST, SPAN, Message
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.layout.record.encode import MessageFields, encode_messages
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.lookup import query_by_key
from rmqstore_spark.reader.options import QueueRange, QueueSplit, ReadOptions
from rmqstore_spark.reader.rows.read import read_queue_split

__all__ = ["ThisStore"]

_TOPIC: Final = "messages"
_FEW: Final = 100
"""Up to so many messages of an append are encoded one by one, more of them as columns."""
_PULL: Final = 32
"""The most that a broker gives at once; more is read as Spark reads it."""
SEGMENT: Final = 16 << 20
"""Bytes: 1 GiB by default. The loads here are smaller than that, and segments expire whole."""
_BODY: Final = ReadOptions(columns=("body",), batch_rows=100_000, batch_bytes=64 << 20)
_SIZE: Final = struct.Struct(">i")
_BODY_AT: Final = 84
"""Bytes from a record's begin to the length of its body, with IPv4 addresses (docs/format.md)."""


class ThisStore:
    """Files: a log, and queues and an index that point into it."""

    name = "this store"
    keeps = True
    schema = """\
commitlog/   records one after the other: queue, position, time, key as a property, body
consumequeue/messages/QUEUE/   20 bytes for each message: place and size in the log, tag
index/       a hash table: topic#key -> place in the log"""
    settings = f"""\
flushDiskType=SYNC_FLUSH or ASYNC_FLUSH
mappedFileSizeCommitLog={SEGMENT}   (1 GiB by default)
diskMaxUsedSpaceRatio=100"""

    def missing(self) -> str:
        return ""

    def version(self) -> str:
        return rmqstore_spark.__version__

    def server(self, folder: Path) -> None:  # noqa: ARG002
        return None

    def open(self, opening: Opening) -> _ThisStore:
        return _ThisStore(opening)


class _ThisStore:
    def __init__(self, opening: Opening) -> None:
        self._path = Path(opening.place) / "store"
        self._now = FIRST if opening.new else FIRST + SPAN  # it never goes back
        config = StoreConfig(
            flush_disk_type="SYNC_FLUSH" if opening.sync else "ASYNC_FLUSH",
            mapped_file_size_commit_log=SEGMENT, disk_max_used_space_ratio=100,
            delete_commit_log_files_interval=0,
        )  # fmt: skip
        self._writer = StoreWriter.open(self._path, config, clock=lambda: self._now)
        if opening.new:
            self._writer.create_topic(_TOPIC, write_queue_nums=opening.queues)
        self._queues = self._writer.queue_reader()
        self._host = self._writer.config.host[0]
        self._reader: Store | None = None

    def append(self, batch: Sequence[Message], writer: int) -> None:  # noqa: ARG002
        self._now = now = batch[-1].stored
        topic, host = _TOPIC.encode(), self._host
        if len(batch) <= _FEW:
            fields = [
                MessageFields(
                    topic,
                    each.body,
                    b"KEYS\x01" + each.key.encode(),
                    host,
                    now,
                    each.queue,
                    0,
                    0,
                    0,
                )
                for each in batch
            ]
            result = self._writer.put(encode_messages(fields, host).data)
        else:
            queues, _, _, keys, bodies = zip(*batch, strict=True)
            columns = {
                "topic": pa.repeat(pa.scalar(_TOPIC), len(batch)),
                "queueId": pa.array(queues, pa.int32()),
                "body": pa.array(bodies, pa.binary()),
                "properties": pa.array([b"KEYS\x01" + key.encode() for key in keys], pa.binary()),
            }
            result = self._writer.put_batch(pa.RecordBatch.from_pydict(columns))
        if not result.ok:
            raise SystemExit(f"a put failed: {result.status} {result.remark}")

    def settle(self) -> None:
        while self._writer.stats()["dispatchBehindBytes"]:
            time.sleep(0.0002)

    @property
    def _store(self) -> Store:
        if self._reader is None:
            self._reader = Store.open(self._path)
        return self._reader

    def read(self, queue: int, position: int, most: int) -> list[bytes]:
        if most <= _PULL:
            return list(_bodies(self._queues.read(_TOPIC, queue, position, most).data))
        end = min(self._store.queue(_TOPIC, queue).max_offset, position + most)
        split = QueueSplit(QueueRange(_TOPIC, queue, position, end), 0)
        batches = read_queue_split(self._store, split, _BODY)
        return [body for batch in batches for body in batch["body"].to_pylist()]

    def find(self, key: str) -> list[bytes]:
        found: list[bytes] = query_by_key(self._store, _TOPIC, key, options=_BODY)[
            "body"
        ].to_pylist()
        return found

    def expire(self, before: int) -> None:
        self._writer.expire(before)
        while (left := self._writer.expirable(before)).segments:
            if left.remark:
                raise SystemExit(f"segments do not expire: {left.remark}")
            time.sleep(0.0005)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._queues.close()
        self._writer.close()


def _bodies(data: bytes) -> Iterator[bytes]:
    """Cut records, as a consumer does."""
    at = 0
    while at < len(data):
        (size,), (length,) = _SIZE.unpack_from(data, at), _SIZE.unpack_from(data, at + _BODY_AT)
        body = at + _BODY_AT + 4
        yield data[body : body + length]
        at += size
