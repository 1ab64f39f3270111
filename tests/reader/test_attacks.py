"""Odd and hostile stores that once led the reader astray: each must fail with words, or read on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rmqstore_spark.errors import (
    CorruptRecordError,
    CorruptStoreError,
    OptionError,
    SegmentExpiredError,
)
from rmqstore_spark.layout.constants import MAGIC_V1
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.lookup import query_by_msg_id
from rmqstore_spark.reader.options import QueueRange, ReadOptions
from rmqstore_spark.reader.plan import PlanLimits, plan, read_split
from tests.support.stores.golden import load_records
from tests.support.stores.storebuilder import StoreBuilder, Traffic, build_store

Golden = Callable[[str], Path]
HEAD = np.dtype([("size", ">i4"), ("magic", ">i4"), ("between", "V20"), ("place", ">i8")])
FEW = ReadOptions(columns=("queueOffset",))
DROP = ReadOptions(columns=("queueOffset",), mode="DROPMALFORMED")
LOSE = ReadOptions(columns=("queueOffset",), fail_on_data_loss=False)


def rows(store: Store, options: ReadOptions = FEW) -> int:
    return sum(
        b.num_rows for q in store.queues() for b in store.read(q.topic, q.queue_id, options=options)
    )


def copy(golden: Golden, name: str, to: Path) -> Path:
    shutil.copytree(golden(name) / "store", to / "store")
    return to / "store"


def change(file: Path, at: int, new: bytes) -> None:
    with open(file, "r+b") as target:
        target.seek(at)
        target.write(new)


def test_a_damaged_dledger_header_is_passed_over(golden: Golden, tmp_path: Path) -> None:
    store_path = copy(golden, "dledger", tmp_path)
    records = sorted(load_records(golden("dledger")), key=lambda r: r.physical_offset)
    second = records[1].physical_offset - 48
    change(store_path / "dledger-n0" / "data" / ("0" * 20), second + 3, b"\x41")
    with Store.open(store_path) as store:
        scanned = sum(b.num_rows for b in store.scan(options=DROP))
        assert scanned == len(records) - 1
        with pytest.raises(CorruptRecordError):
            list(store.scan())


@pytest.mark.parametrize("entry", [bytes(20), b"\xff" * 20])
@pytest.mark.parametrize("slot", [0, 1, 203, 204, 205, 1_000, 4_999])
def test_a_hole_in_a_queue_hides_nothing_behind_it(tmp_path: Path, slot: int, entry: bytes) -> None:
    path = build_store(tmp_path / "store", Traffic(messages=5_000, body_size=10))
    change(path / "consumequeue" / "orders" / "0" / ("0" * 20), slot * 20, entry)
    with Store.open(path) as store:
        # The last one cannot be told from one that was never written.
        last = slot == 4_999
        assert store.queue("orders", 0).max_offset == (4_999 if last else 5_000)
        assert rows(store, DROP) == 4_999
        if not last:
            with pytest.raises(CorruptStoreError, match=f"entry of offset {slot} of orders/0"):
                rows(store)


@pytest.mark.parametrize("length", [0, 700])
def test_a_part_copy_of_a_closed_store_is_no_shorter_store(
    golden: Golden, tmp_path: Path, length: int
) -> None:
    store_path = copy(golden, "tiny", tmp_path)
    last = max((store_path / "commitlog").iterdir())
    if length:
        last.write_bytes(last.read_bytes()[:length])
    else:
        last.unlink()
    with Store.open(store_path) as store:
        with pytest.raises(
            CorruptStoreError,
            match=r"ends early|entry \d+ of queue \S+/\d+ (points past the end of the CommitLog"
            r"|states a record of \d+ bytes where no record fits)",
        ):
            rows(store)
        assert 0 < rows(store, DROP) < 60


def test_a_damaged_last_record_that_a_queue_names_is_damage(golden: Golden, tmp_path: Path) -> None:
    store_path = copy(golden, "tiny", tmp_path)
    record = max(
        (r for r in load_records(golden("tiny")) if r.body), key=lambda r: r.physical_offset
    )
    file = store_path / "commitlog" / f"{record.physical_offset // 4096 * 4096:020d}"
    at = file.read_bytes().index(record.body, record.physical_offset % 4096)
    change(file, at, bytes([record.body[0] ^ 1]))
    with Store.open(store_path) as store, pytest.raises(CorruptRecordError):
        list(store.scan())


def test_a_file_far_away_costs_no_memory(tmp_path: Path) -> None:
    path = build_store(tmp_path / "store", Traffic(messages=50, topics={"orders": 2}))
    far = path / "commitlog" / f"{1 << 60:020d}"
    far.write_bytes(bytes(4096))
    entry = (1 << 60).to_bytes(8, "big") + (200).to_bytes(4, "big") + bytes(8)
    change(path / "consumequeue" / "orders" / "1" / ("0" * 20), 20 * 24, entry)
    with Store.open(path) as store:
        ranges = [QueueRange(q.topic, q.queue_id, 0, 25) for q in store.queues()]
        splits = plan(store, ranges, PlanLimits(max_bytes=1 << 20), "commitlog")
        assert len(splits) < 1_100  # the first file is 1 GiB, and sparse
        assert sum(b.num_rows for s in splits for b in read_split(store, s, DROP)) == 49


def test_a_record_that_claims_two_gigabytes_is_not_read(golden: Golden, tmp_path: Path) -> None:
    store_path = copy(golden, "unclean-nocheckpoint", tmp_path)
    first = store_path / "commitlog" / ("0" * 20)
    change(first, 0, (2**31 - 1).to_bytes(4, "big"))
    with open(first, "r+b") as file:
        file.truncate(3 << 30)
    with Store.open(store_path) as store:
        assert len(query_by_msg_id(store, "7F00000100002A9F0000000000000000")) == 0


def test_a_refresh_looks_at_the_queues_too(tmp_path: Path) -> None:
    (batch,) = Traffic(messages=30, topics={"orders": 1, "bills": 1}).batches()
    with StoreBuilder(tmp_path / "store", segment_size=1 << 20) as builder:
        builder.append(batch.slice(0, 10))
        builder.flush()
        with Store.open(builder.path) as store:
            assert rows(store) == 10
            builder.append(batch.slice(10))
            builder.flush()
            store.refresh()
            assert rows(store) == 30
            shutil.rmtree(builder.path / "consumequeue" / "bills")
            store.refresh()
            assert [q.topic for q in store.queues()] == ["orders"]
            assert rows(store) == 15


@pytest.mark.parametrize(
    ("start", "end"), [(-1, None), (-5, 5), (31, None), (500, 600), (None, 31), (20, 10)]
)
def test_offsets_that_a_queue_never_had_are_the_callers_mistake(
    golden: Golden, start: int | None, end: int | None
) -> None:
    with Store.open(golden("tiny") / "store") as store:
        with pytest.raises(OptionError, match="are outside queue T/0, which holds offsets 0 to 30"):
            store.read("T", 0, start, end)
        assert list(store.read("T", 0, 30)) == list(store.read("T", 0, 7, 7)) == []
        assert sum(b.num_rows for b in store.read("T", 0, 10, 30)) == 20


def test_offsets_that_came_since_the_last_look_are_looked_for(tmp_path: Path) -> None:
    (batch,) = Traffic(messages=30, topics={"orders": 1}).batches()
    with StoreBuilder(tmp_path / "store", segment_size=1 << 20) as builder:
        builder.append(batch.slice(0, 10))
        builder.flush()
        with Store.open(builder.path) as store:
            assert store.queue("orders", 0).max_offset == 10
            builder.append(batch.slice(10))
            builder.flush()
            assert sum(b.num_rows for b in store.read("orders", 0, 5, 30)) == 25


def test_a_missing_file_in_the_middle_is_loss_and_can_be_skipped(
    golden: Golden, tmp_path: Path
) -> None:
    store_path = copy(golden, "basic", tmp_path)
    (store_path / "commitlog" / f"{3 * 262_144:020d}").unlink()
    with Store.open(store_path) as store:
        with pytest.raises(SegmentExpiredError, match="no file of the CommitLog holds offset"):
            rows(store)
        kept = rows(store, LOSE)
        assert 1_500 < kept < 2_000
        with pytest.raises(SegmentExpiredError):
            list(store.scan())
        assert sum(b.num_rows for b in store.scan(options=LOSE)) == kept
    (store_path / "consumequeue" / "TopicTest" / "0" / f"{2_000:020d}").unlink(missing_ok=True)
    with Store.open(store_path) as store:
        assert kept - 100 <= rows(store, LOSE) <= kept


def test_a_file_in_the_middle_that_was_cut_off_is_named(golden: Golden, tmp_path: Path) -> None:
    store_path = copy(golden, "basic", tmp_path)
    short = store_path / "commitlog" / f"{3 * 262_144:020d}"
    os.truncate(short, 1000)
    with Store.open(store_path) as store:
        with pytest.raises(SegmentExpiredError, match="has 1000 bytes, and the other") as raised:
            rows(store)
        assert str(short) in str(raised.value)
        assert 1_500 < rows(store, replace(LOSE, mode="DROPMALFORMED")) < 2_000


@pytest.mark.threat("Loops end")
def test_overlapping_heads_of_records_are_not_tried_for_ever(tmp_path: Path) -> None:
    # Behind a damaged place, 200,000 places that look like the beginning of a record of 1 MiB.
    segment = 8 << 20
    path = build_store(tmp_path / "store", Traffic(messages=50), segment_size=segment)
    log = path / "commitlog" / ("0" * 20)
    begin = len(log.read_bytes().rstrip(b"\0"))
    heads = np.zeros((segment - begin - (1 << 20)) // 36, HEAD)
    heads["size"], heads["magic"] = 1 << 20, MAGIC_V1
    heads["place"] = begin + 36 * np.arange(len(heads))
    change(log, begin, heads.tobytes())
    shutil.rmtree(path / "consumequeue")
    with Store.open(path) as store:
        read = 0
        whole = store.directory.files.read

        def counted(path: str, offset: int, length: int) -> bytes:
            nonlocal read
            read += length
            return whole(path, offset, length)

        store.directory.files.read = counted  # type: ignore[method-assign]  # counts only
        with pytest.raises(CorruptStoreError, match="too many false record headers"):
            list(store.scan(options=DROP))
        assert read < 128 << 20
