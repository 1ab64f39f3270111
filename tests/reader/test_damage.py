"""Damaged stores: never a crash, an endless loop or a wrong row; a typed error or a skip."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.errors import CorruptRecordError, CorruptStoreError, RmqStoreError
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.options import QueueRange, ReadOptions
from rmqstore_spark.reader.plan import PlanLimits, plan, read_split
from tests.support.sampling import one_in
from tests.support.stores.expected import expected_rows, expected_scan, queue_key
from tests.support.stores.golden import load_records

Golden = Callable[[str], Path]
Row = dict[str, Any]

DROP = ReadOptions(mode="DROPMALFORMED")


# No checksum covers these: a changed one cannot be told from a real one.
UNCHECKED = frozenset({
    "msgId", "uniqKey", "tags", "keys", "properties", "bornTimestamp", "bornHost",
    "storeTimestamp", "storeHost", "flag", "sysFlag", "reconsumeTimes", "preparedTransactionOffset",
})  # fmt: skip


FLIPS = (0x01, 0x80, 0xFF)


@pytest.fixture
def tiny(golden: Golden, tmp_path: Path) -> Path:
    """A copy of the golden store `tiny`, to be damaged: 60 messages, segments of 4 KiB."""
    shutil.copytree(golden("tiny"), tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.fixture
def wanted(golden: Golden) -> dict[tuple[str, int, int], Row]:
    """The rows of the undamaged store."""
    return {queue_key(row): row for row in expected_rows(golden("tiny"))}


def rows_of(batches: Iterable[Any]) -> Iterator[Row]:
    for batch in batches:
        batch.validate(full=True)
        for row in batch.to_pylist():
            row["properties"] = dict(row["properties"])
            row.pop("brokerName")
            yield row


def read_all(path: Path, options: ReadOptions, by: Any = "queue") -> list[Row]:
    """Everything that the queues of a store hold."""
    with Store.open(path / "store") as store:
        ranges = [
            QueueRange(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in store.queues()
        ]
        splits = plan(store, ranges, by=by)
        return [row for split in splits for row in rows_of(read_split(store, split, options))]


WAYS = [(options, by) for options in (ReadOptions(), DROP) for by in ("queue", "commitlog")]


def check(
    path: Path,
    wanted: dict[tuple[str, int, int], Row],
    *,
    may_change: frozenset[str] = frozenset(),
    turn: int | None = None,
) -> int:
    """Read in both modes and both ways; what comes must be right. Gives how many rows came.

    Args:
        turn: of a long series, each member reads in one of the four ways.
    """
    fewest = len(wanted)
    for options, by in WAYS if turn is None else [WAYS[turn % len(WAYS)]]:
        try:
            rows = read_all(path, options, by)
        except RmqStoreError:
            fewest = 0 if options.mode == "FAILFAST" else fewest
            continue
        for row in rows:
            right = wanted[queue_key(row)]
            wrong = {name for name in right if row[name] != right[name]}
            assert wrong <= may_change
        fewest = min(fewest, len(rows))
    return fewest


def log_of(path: Path) -> list[Path]:
    return sorted((path / "store" / "commitlog").iterdir())


def queue_files(path: Path) -> list[Path]:
    return sorted((path / "store" / "consumequeue").glob("*/*/*"))


@pytest.mark.threat("Damage never becomes a wrong row")
def test_a_commitlog_file_cut_at_every_byte(tiny: Path, wanted: dict[Any, Row]) -> None:
    last = log_of(tiny)[-1]
    whole = last.read_bytes()
    end = max(i for i, byte in enumerate(whole) if byte) + 1
    for length in one_in(8, range(end)):
        last.write_bytes(whole[:length])
        assert check(tiny, wanted, turn=length) < len(wanted)


def test_a_commitlog_file_in_the_middle_cut_at_many_bytes(
    tiny: Path, wanted: dict[Any, Row]
) -> None:
    middle = log_of(tiny)[3]
    whole = middle.read_bytes()
    for length in range(0, len(whole), 97):
        middle.write_bytes(whole[:length])
        check(tiny, wanted)


def test_a_queue_file_cut_at_every_byte(tiny: Path, wanted: dict[Any, Row]) -> None:
    for file in (queue_files(tiny)[0], queue_files(tiny)[-1]):
        whole = file.read_bytes()
        for length in one_in(8, range(len(whole))):
            file.write_bytes(whole[:length])
            check(tiny, wanted)
        file.write_bytes(whole)


@pytest.mark.threat("Damage never becomes a wrong row")
def test_every_byte_of_a_record_changed(
    tiny: Path, golden: Golden, wanted: dict[Any, Row], each_kernel: str
) -> None:
    record = max(load_records(golden("tiny"))[:20], key=lambda r: len(r.properties_raw))
    file = log_of(tiny)[record.physical_offset // 4096]
    whole = file.read_bytes()
    at = record.physical_offset % 4096
    checked = range(at, at + 40)  # the fixed fields up to sysFlag: all but flag must be noticed
    body = whole.index(record.body, at) if record.body else at
    for place in one_in(3, range(at, at + record.store_size)):
        for flip in one_in(3, FLIPS):
            damaged = bytearray(whole)
            damaged[place] ^= flip
            file.write_bytes(damaged)
            check(tiny, wanted, may_change=UNCHECKED, turn=place + flip)
            is_flag = at + 16 <= place < at + 20
            is_body = body <= place < body + len(record.body)
            if (place in checked and not is_flag and place < at + 36) or is_body:
                with pytest.raises(RmqStoreError):
                    read_all(tiny, ReadOptions())


@pytest.mark.threat("Lengths are checked before allocation")
@pytest.mark.parametrize(
    "value", [0, 1, 90, 91, 4096, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
)
@pytest.mark.parametrize("field", [0, 84])
def test_lengths_that_no_record_can_have(
    tiny: Path, golden: Golden, wanted: dict[Any, Row], field: int, value: int, each_kernel: str
) -> None:
    record = load_records(golden("tiny"))[5]
    file = log_of(tiny)[record.physical_offset // 4096]
    data = bytearray(file.read_bytes())
    at = record.physical_offset % 4096 + field
    if int.from_bytes(data[at : at + 4], "big") == value:
        return
    data[at : at + 4] = value.to_bytes(4, "big")
    file.write_bytes(data)
    assert check(tiny, wanted) < len(wanted)
    with pytest.raises(
        CorruptStoreError, match=rf"{file.name} at offset {record.physical_offset % 4096}"
    ):
        read_all(tiny, ReadOptions())


@pytest.mark.threat("Damage never becomes a wrong row")
@pytest.mark.parametrize(
    "entry",
    [
        bytes(20),
        b"\xff" * 20,
        (1 << 62).to_bytes(8, "big") + (200).to_bytes(4, "big") + bytes(8),
        (0).to_bytes(8, "big") + ((1 << 31) - 1).to_bytes(4, "big") + b"\1" * 8,
        (-5).to_bytes(8, "big", signed=True) + (200).to_bytes(4, "big") + bytes(8),
        (4).to_bytes(8, "big") + (200).to_bytes(4, "big") + bytes(8),
        (0).to_bytes(8, "big") + (17).to_bytes(4, "big") + bytes(8),
    ],
)
@pytest.mark.parametrize("slot", [0, 1, 3])
def test_entries_that_point_nowhere(
    tiny: Path, wanted: dict[Any, Row], entry: bytes, slot: int
) -> None:
    file = queue_files(tiny)[2]
    data = bytearray(file.read_bytes())
    data[20 * slot : 20 * slot + 20] = entry
    file.write_bytes(data)
    check(tiny, wanted)


def test_a_damaged_record_in_the_middle_is_named_and_can_be_skipped(
    tiny: Path, golden: Golden, wanted: dict[Any, Row], caplog: pytest.LogCaptureFixture
) -> None:
    record = next(r for r in load_records(golden("tiny")) if len(r.body) > 20)
    file = log_of(tiny)[record.physical_offset // 4096]
    data = bytearray(file.read_bytes())
    at = record.physical_offset % 4096
    data[data.index(record.body, at) + 3] ^= 4
    file.write_bytes(data)
    message = rf"a body does not match its bodyCRC in {file} at offset {at}\. .*DROPMALFORMED"
    with pytest.raises(CorruptRecordError, match=message):
        read_all(tiny, ReadOptions())
    kept = {queue_key(row) for row in read_all(tiny, DROP)}
    assert set(wanted) - kept == {(record.topic, record.queue_id, record.queue_offset)}
    assert "left out 1 record(s)" in caplog.text
    # Without the body nothing needs the CRC, and what is asked for is whole.
    assert len(read_all(tiny, ReadOptions(check_crc=False))) == len(wanted)
    with Store.open(tiny / "store") as store, pytest.raises(CorruptRecordError, match=message):
        list(store.scan())
    with Store.open(tiny / "store") as store:
        scanned = list(rows_of(store.scan(options=DROP)))
    assert scanned == [
        row for row in expected_scan(golden("tiny"))
        if row["physicalOffset"] != record.physical_offset
    ]  # fmt: skip


def test_a_scan_of_a_log_cut_at_every_byte_ends_at_a_record(
    tiny: Path, golden: Golden, each_kernel: str
) -> None:
    expected = expected_scan(golden("tiny"))
    shutil.rmtree(tiny / "store" / "consumequeue")  # queues would tell that more is missing
    last = log_of(tiny)[-1]
    whole = last.read_bytes()
    start = int(last.name)
    for length in one_in(29 if each_kernel == "compiled" else 88, range(len(whole))):
        last.write_bytes(whole[:length])
        with Store.open(tiny / "store") as store:
            rows = list(rows_of(store.scan()))
        inside = [
            row for row in expected if row["physicalOffset"] + row["storeSize"] <= start + length
        ]
        assert rows == inside


def test_a_scan_of_damaged_bytes_gives_no_wrong_row(
    tiny: Path, golden: Golden, each_kernel: str
) -> None:
    right = {row["physicalOffset"]: row for row in expected_scan(golden("tiny"))}
    file = log_of(tiny)[2]
    whole = file.read_bytes()
    for place in one_in(23 if each_kernel == "compiled" else 56, range(len(whole))):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        file.write_bytes(damaged)
        with Store.open(tiny / "store") as store:
            rows = list(rows_of(store.scan(options=DROP)))
        assert len(rows) >= len(right) - 2
        for row in rows:
            expected = right[row["physicalOffset"]]
            wrong = {name for name in expected if row[name] != expected[name]}
            # The scan has no queue to compare topic, queue and offset with.
            assert wrong <= UNCHECKED | {"topic", "queueId", "queueOffset"}


@pytest.mark.threat("Damage never becomes a wrong row")
def test_garbage_beside_real_files(tiny: Path, wanted: dict[Any, Row]) -> None:
    store = tiny / "store"
    (store / "commitlog" / "notes.txt").write_text("hello")
    (store / "commitlog" / "0000000000000000000x").write_bytes(b"\xff" * 4096)
    (store / "commitlog" / "99999999999999999999").write_bytes(b"\xff" * 4096)
    (store / "consumequeue" / "file").write_bytes(b"x")
    (store / "consumequeue" / "Empty").mkdir()
    (store / "consumequeue" / "Empty" / "0").mkdir()
    (store / "consumequeue" / "T" / "minus").mkdir()
    (store / "consumequeue" / "T" / "0" / "junk").write_bytes(b"x")
    (store / "consumequeue" / "T" / "loop").symlink_to(store / "consumequeue")
    (store / "loop").symlink_to(store)
    assert check(tiny, wanted) == len(wanted)


def test_a_file_named_as_if_it_lay_within_another(
    tiny: Path, wanted: dict[Any, Row], caplog: pytest.LogCaptureFixture
) -> None:
    store = tiny / "store"
    strays = [
        store / "commitlog" / f"{4096 + 1000:020}",
        store / "consumequeue" / "T" / "0" / f"{40:020}",
    ]
    for stray in strays:
        stray.write_bytes(b"\xff" * 120)
    assert check(tiny, wanted) == len(wanted)
    for stray in strays:
        said = next(text for text in caplog.messages if text.startswith(f"Skipped {stray}: "))
        assert "holds the same part" in said


@pytest.mark.parametrize("size", [0, 1, 7, 23, 24, 100, 5000])
@pytest.mark.parametrize("unclean", [False, True])
def test_a_checkpoint_of_another_length(
    tiny: Path, wanted: dict[Any, Row], size: int, unclean: bool
) -> None:
    (tiny / "store" / "checkpoint").write_bytes(b"\xa5" * size)
    if unclean:
        (tiny / "store" / "abort").touch()
    check(tiny, wanted)


@pytest.mark.parametrize("by", ["queue", "commitlog", "auto"])
def test_an_entry_that_lies_about_its_place_hides_no_other_message(
    golden: Golden, tmp_path: Path, by: str
) -> None:
    shutil.copytree(golden("basic"), tmp_path / "basic")
    count = len(expected_rows(golden("basic")))
    file = tmp_path / "basic" / "store" / "consumequeue" / "TopicTest" / "1" / ("0" * 20)
    whole = file.read_bytes()
    for slot in one_in(9, range(100)):
        for place, flip in ((0, 0x40), (0, 0x80), (5, 0xFF), (6, 0x20)):
            data = bytearray(whole)
            data[20 * slot + place] ^= flip
            file.write_bytes(data)
            with Store.open(tmp_path / "basic" / "store") as store:
                ranges = [
                    QueueRange(q.topic, q.queue_id, q.min_offset, q.max_offset)
                    for q in store.queues()
                ]
                splits = plan(store, ranges, PlanLimits(max_bytes=500_000), by)  # type: ignore[arg-type]  # one of three
                few = ReadOptions(columns=("queueOffset",), mode="DROPMALFORMED")
                rows = sum(b.num_rows for s in splits for b in read_split(store, s, few))
                assert rows == count - 1
                strict = ReadOptions(columns=("queueOffset",))
                with pytest.raises(RmqStoreError):
                    list(chain.from_iterable(read_split(store, s, strict) for s in splits))


def test_a_pipe_in_place_of_the_lock_holds_nobody_up(tiny: Path, wanted: dict[Any, Row]) -> None:
    lock = tiny / "store" / "lock"
    lock.unlink()
    os.mkfifo(lock)
    (tiny / "store" / "abort").touch()
    assert check(tiny, wanted) == len(wanted)
