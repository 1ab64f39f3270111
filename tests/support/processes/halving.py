"""Transactional messages as producers put them, and a process that puts some and ends them.

python -m tests.support.processes.halving STORE COUNT
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from rmqstore_spark.base.types import HalfId
from rmqstore_spark.engine import PutResult, StoreConfig, StoreWriter
from rmqstore_spark.layout.record.encode import encode_records
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.produce.records import record_columns
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.transactions import Transaction, find_transactions
from tests.support.stores.storing import config, messages, until

__all__ = [
    "GROUP",
    "as_block",
    "ends",
    "half_config",
    "halves",
    "ids_of",
    "put_halves",
    "waiting_in",
]

GROUP = "pg"
HOUR_MS = 3_600_000


def half_config(**settings: Any) -> StoreConfig:
    """A store that checks nothing for an hour."""
    return config(
        **{"transactionCheckInterval": HOUR_MS, "mappedFileSizeCommitLog": 65536, **settings}
    )


def halves(
    bodies: Sequence[bytes], *, more: bytes = b"", group: str = GROUP, **others: Any
) -> pa.RecordBatch:
    """Transactional messages.

    Args:
        bodies: one each; also the end of its UNIQ_KEY.
        more: properties of all of them.
        group: the producer group.
        others: as `messages` takes them.
    """
    lead = b"TRAN_MSG\x01true\x02PGROUP\x01" + group.encode() + b"\x02UNIQ_KEY\x01u-"
    properties = [lead + body + (b"\x02" + more if more else b"") for body in bodies]
    born = pa.array([0] * len(bodies), pa.int64())
    made = {"properties": pa.array(properties, pa.binary()), "bornTimestamp": born, **others}
    return messages(bodies, **made)


def as_block(batch: pa.RecordBatch) -> U1:
    """Encode messages with all their columns."""
    return encode_records(record_columns(batch, 0, "127.0.0.1:10911")).data


def put_halves(store: StoreWriter, bodies: Sequence[bytes], **others: Any) -> list[HalfId]:
    """Put half messages; return what names them."""
    return ids_of(store.transactions.puts.put(as_block(halves(bodies, **others))))


def ids_of(result: PutResult) -> list[HalfId]:
    """What names half messages that were put."""
    assert result.ok, result
    places = zip(result.queue_offset.tolist(), result.physical_offset.tolist(), strict=True)
    return [HalfId(*place) for place in places]


def ends(
    store: StoreWriter, half_ids: Sequence[HalfId], *, is_commit: bool, group: str = GROUP
) -> list[str]:
    """End transactions; return the status of each."""
    answers = store.transactions.end(group, half_ids, is_commit=is_commit)
    return [answer.status for answer in answers]


def waiting_in(path: Path) -> list[Transaction]:
    """What waits in a store's files."""
    with Store.open(path) as store:
        return list(find_transactions(store).waiting)


def main(path: str, count: int) -> None:
    """Put half messages one by one; commit the first third, roll back the second."""
    with StoreWriter.open(
        path, half_config(transactionCheckInterval=100, flushDiskType="SYNC_FLUSH")
    ) as store:
        names = [b"%d" % number for number in range(count)]
        made = [put_halves(store, [name])[0] for name in names]
        third = count // 3
        for half in made[:third]:
            assert ends(store, [half], is_commit=True) == ["COMMITTED"]
            os.write(1, b"committed\n")
        assert set(ends(store, made[third : 2 * third], is_commit=False)) == {"ROLLED_BACK"}
        os.write(1, b"rolled back\n")
        saved = Path(path, "config", "transactionChecks.json")
        until(saved.exists)
        put_halves(store, [b"last"])
        store.flush()
        until(lambda: saved.with_name("transactionChecks.json.bak").exists())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
