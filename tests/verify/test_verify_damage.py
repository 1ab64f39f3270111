"""Whatever is wrong in a store is reported, at its place."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.layout.queues.consumequeue import CONSUME_QUEUE
from rmqstore_spark.reader import Store
from rmqstore_spark.verify import Problem, VerifyReport, verify
from tests.support.stores.golden import RecordReport, load_meta, load_records
from tests.support.stores.records import log_files, store_kwargs

Copy = Callable[[str], Path]


@dataclass(frozen=True)
class Spot:
    """A byte in a file."""

    path: Path
    offset: int

    def __add__(self, count: int) -> Spot:
        return Spot(self.path, self.offset + count)

    def read(self, length: int) -> bytes:
        return self.path.read_bytes()[self.offset : self.offset + length]

    def write(self, data: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(self.offset)
            file.write(data)

    def flip(self, mask: int = 1) -> None:
        self.write(bytes([self.read(1)[0] ^ mask]))


class Patient:
    """A copy of a golden store that is going to be damaged."""

    def __init__(self, golden: Path) -> None:
        self.golden = golden
        self.store = golden / "store"
        self.records = load_records(golden)
        self.meta = load_meta(golden)

    def record(self, record: RecordReport) -> Spot:
        """Where a record begins."""
        start, path, _ = [f for f in log_files(self.golden) if f[0] <= record.physical_offset][-1]
        return Spot(path, record.physical_offset - start)

    def entry(self, topic: str, queue_id: int, slot: int) -> Spot:
        """Where an entry of a queue begins."""
        size = self.meta.consumequeue_file_size
        start = slot * 20 // size * size
        folder = self.store / "consumequeue" / topic / str(queue_id)
        return Spot(folder / f"{start:020d}", slot * 20 - start)

    def entry_of(self, record: RecordReport) -> Spot:
        """Where the entry of a record begins."""
        return self.entry(record.topic, record.queue_id, record.queue_offset)

    def index(self, number: int = 0) -> Path:
        return sorted((self.store / "index").iterdir())[number]

    def index_entry(self, number: int, file: int = 0) -> Spot:
        return Spot(self.index(file), 40 + 4 * self.meta.index_slots + 20 * number)

    def checkpoint(self) -> Spot:
        return Spot(self.store / "checkpoint", 0)

    def verify(self, **options: Any) -> VerifyReport:
        with Store.open(self.store, **store_kwargs(self.golden)) as store:
            return verify(store, **options)

    def expect(self, kind: str, spot: Spot | Path, severity: str = "error") -> VerifyReport:
        """Verify; there must be a problem of this kind at this place."""
        report = self.verify()
        path, offset = (spot, None) if isinstance(spot, Path) else (spot.path, spot.offset)
        wanted = [(kind, severity, str(path), offset)]
        found = [(p.kind, p.severity, p.file, p.offset) for p in report.problems]
        assert wanted[0] in found, report.problems
        assert report.ok == (severity == "note" and not report.errors)
        return report

    def expect_only(self, kind: str, spot: Spot | Path, severity: str = "error") -> Problem:
        """As `expect`, and nothing else is wrong."""
        report = self.expect(kind, spot, severity)
        assert report.totals == {kind: 1}, report.problems
        return report.problems[0]


@pytest.fixture
def patient(copy: Copy) -> Callable[[str], Patient]:
    """Give `patient(name)`: a copy of a golden store."""
    return lambda name: Patient(copy(name))


@pytest.fixture
def basic(patient: Callable[[str], Patient]) -> Patient:
    """A copy of `basic`: 2000 messages, 3 topics, 11 files of the log, 7 of the index."""
    return patient("basic")


def long(value: int) -> bytes:
    return struct.pack(">q", value)


# ---- the log -----------------------------------------------------------------------------------


def test_a_changed_body(basic: Patient) -> None:
    record = next(r for r in basic.records[700:] if len(r.body) > 50)
    (basic.record(record) + 88 + 40).flip()
    problem = basic.expect_only("body-crc", basic.record(record))
    assert str(record.body_crc) in problem.text


FIELDS = {"size": 0, "magic": 4, "physicalOffset": 28, "bodyLength": 84}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("byte", range(4))
def test_a_changed_length_magic_or_place(basic: Patient, field: str, byte: int) -> None:
    record, following = basic.records[900:902]
    (basic.record(record) + FIELDS[field] + byte).flip()
    report = basic.expect("record", basic.record(record))
    assert report.totals == {"record": 1}
    assert report.counts["damagedBytes"] == following.physical_offset - record.physical_offset
    assert report.counts["records"] == len(basic.records) - 1
    assert report.counts["entriesOfDamagedRecords"] == 1
    assert report.torn_tail is None


def test_a_changed_length_of_topic_or_properties(basic: Patient) -> None:
    record = basic.records[900]
    (basic.record(record) + 88 + len(record.body)).flip(0x40)
    basic.expect("record", basic.record(record))


def test_a_page_of_zeros_in_the_middle(basic: Patient) -> None:
    lost = basic.records[1000:1003]
    spot = basic.record(lost[0])
    spot.write(bytes(lost[-1].physical_offset - lost[0].physical_offset + 100))
    report = basic.expect("record", spot)
    assert report.totals == {"record": 1}
    assert report.counts["entriesOfDamagedRecords"] == 3


def test_a_wrong_blank(basic: Patient) -> None:
    last = [r for r in basic.records if r.physical_offset < 262144][-1]
    spot = basic.record(last) + last.store_size
    left = int.from_bytes(spot.read(4), "big")
    assert left == 262144 - spot.offset
    spot.write((left - 1).to_bytes(4, "big"))
    problem = basic.expect_only("record", spot)
    assert f"{left}" in problem.text


@pytest.mark.parametrize(
    ("at", "data", "kind"),
    [
        (76, b"\x00\x00\x01\x00\x00\x00\x00\x00", "field"),  # preparedTransactionOffset
        (36, b"\x00\x00\x08\x00", "sys-flag"),  # no such bit
        (36, b"\x00\x00\x05\x01", "sys-flag"),  # compressed in an unknown way
        (72, b"\xff\xff\xff\xff", "field"),  # reconsumeTimes
        (56, b"\x80\x00\x00\x00\x00\x00\x00\x00", "field"),  # storeTimestamp
        (52, b"\x00\x01\x00\x00", "field"),  # the port of bornHost
        (68, b"\x00\x01\x00\x00", "field"),  # the port of storeHost
    ],
)
def test_fields_that_no_broker_writes(basic: Patient, at: int, data: bytes, kind: str) -> None:
    record = basic.records[30]
    (basic.record(record) + at).write(data)
    basic.expect(kind, basic.record(record))


def test_a_transaction_that_never_began(basic: Patient) -> None:
    record = basic.records[30]
    (basic.record(record) + 83).write(b"\x01")
    basic.expect_only("field", basic.record(record), "note")


def test_a_pending_transaction_that_was_none(patient: Callable[[str], Patient]) -> None:
    store = patient("transactions")
    record = next(r for r in store.records if r.sys_flag == 8 and r.queue_offset)
    (store.record(record) + 39).write(b"\x0c")
    store.expect("field", store.record(record))
    store.expect("entry-pending", store.entry_of(record))


@pytest.mark.parametrize("at", [12, 20], ids=["queueId", "queueOffset"])
def test_a_record_of_another_place_in_the_queues(basic: Patient, at: int) -> None:
    record = basic.records[500]
    (basic.record(record) + at).flip(0x40)
    basic.expect("entry-identity", basic.record(record))


def test_a_record_that_takes_the_offset_of_another(basic: Patient) -> None:
    record = basic.records[500]
    (basic.record(record) + 27).flip(2)
    report = basic.expect("entry-identity", basic.record(record))
    assert report.errors == 1


def test_a_topic_that_leads_out_of_its_folder(patient: Callable[[str], Patient]) -> None:
    store = patient("tiny")
    record = store.records[20]
    (store.record(record) + 88 + len(record.body) + 1).write(b"/")
    store.expect("topic-name", store.record(record))
    store.expect("missing-queue", store.record(record))


def test_times_that_go_back(basic: Patient) -> None:
    record = basic.records[1000]
    (basic.record(record) + 56).write(long(record.store_timestamp - 100_000))
    report = basic.expect("time-back", basic.record(record), "note")
    assert report.totals["time-back"] == 1


def test_properties_that_a_write_has_lost(basic: Patient) -> None:
    record = next(r for r in basic.records[100:] if len(r.properties_raw) > 60)
    (basic.record(record) + (record.store_size - 20)).write(bytes(20))
    basic.expect("properties", basic.record(record), "note")


@pytest.mark.parametrize(
    "name", ["core.1234", "README.txt", ".nfs000000000abc", ".0000.Xy12z", "0.swp", "000~"]
)
@pytest.mark.parametrize("folder", ["commitlog", "consumequeue/TopicTest/0", "index"])
def test_a_file_that_others_leave_is_a_note(basic: Patient, folder: str, name: str) -> None:
    stray = basic.store / folder / name
    stray.write_bytes(b"x")
    basic.expect_only("stray-file", stray, "note")


def test_a_missing_file_of_the_log(basic: Patient) -> None:
    (basic.store / "commitlog" / f"{262144 * 4:020d}").unlink()
    report = basic.expect("log-file", basic.store / "commitlog")
    assert any(f"from {262144 * 4} to {262144 * 5}" in p.text for p in report.problems)
    lost = [r for r in basic.records if r.physical_offset // 262144 == 4]
    assert report.totals == {"log-file": 1}
    assert report.counts["entriesOfDamagedRecords"] == len(lost)
    assert report.counts["records"] == len(basic.records) - len(lost)


@pytest.mark.parametrize("change", [-4096, 4096])
def test_a_file_of_the_log_of_another_length(basic: Patient, change: int) -> None:
    path = basic.store / "commitlog" / f"{262144 * 4:020d}"
    with path.open("r+b") as file:
        file.truncate(262144 + change)
    basic.expect("log-file", path)


def test_a_damaged_end_of_a_closed_log_is_no_torn_tail(basic: Patient) -> None:
    last = basic.records[-1]
    basic.record(last).write(bytes(last.store_size))
    report = basic.expect("record", basic.record(last))
    assert report.torn_tail is None
    assert report.log_end == last.physical_offset + last.store_size


def test_a_closed_log_of_which_nothing_else_is_left(basic: Patient) -> None:
    for name in ("consumequeue", "index"):
        shutil.rmtree(basic.store / name)
    basic.checkpoint().path.unlink()
    last = basic.records[-1]
    assert basic.verify().log_end == last.physical_offset + last.store_size
    record = next(r for r in basic.records if len(r.body) > 50)
    (basic.record(record) + 88 + 40).flip()
    report = basic.verify()
    assert report.torn_tail is None
    assert report.log_end == last.physical_offset + last.store_size
    assert report.totals["body-crc"] == report.totals["no-queues"] == 1


def test_a_closed_log_without_a_record(basic: Patient) -> None:
    for name in ("consumequeue", "index"):
        shutil.rmtree(basic.store / name)
    basic.checkpoint().path.unlink()
    first, *others = sorted((basic.store / "commitlog").iterdir())
    for path in others:
        path.unlink()
    first.write_bytes(random.Random(0).randbytes(first.stat().st_size))
    basic.expect("record", Spot(first, 0))
    first.write_bytes(bytes(first.stat().st_size))
    report = basic.verify()
    assert report.log_end == 0
    assert not report.errors


@pytest.mark.parametrize("length", [0, 5, 12, 22, 35, 36, 60])
def test_a_log_that_is_cut_in_its_last_record(
    patient: Callable[[str], Patient], length: int
) -> None:
    store = patient("tiny")
    last = store.records[-1]
    spot = store.record(last)
    with spot.path.open("r+b") as file:
        file.truncate(spot.offset + length)
    report = store.verify()
    assert not report.ok
    assert report.counts["records"] == len(store.records) - 1
    assert (report.torn_tail is not None) == (length > 0)


def test_what_lies_behind_the_end_of_a_closed_log(basic: Patient) -> None:
    last = basic.records[-1]
    end = basic.record(last) + last.store_size
    (end + 100).write(b"left over")
    report = basic.verify()
    assert report.ok
    assert report.totals == {}
    tail = report.torn_tail
    assert tail is not None
    assert (tail.file, tail.offset) == (str(end.path), end.offset)
    assert tail.physical_offset == report.log_end == last.physical_offset + last.store_size
    assert tail.size == 109
    assert not tail.holds_records


def test_a_recovered_log_with_records_behind_its_end(patient: Callable[[str], Patient]) -> None:
    # As a broker leaves it that recovered the store, and then put nothing more.
    store = patient("unclean-crc")
    end = 1796657
    (store.store / "abort").unlink()
    for record in store.records:
        if record.physical_offset >= end:
            store.entry_of(record).write(bytes(20))
    for path in (store.store / "index").iterdir():
        path.unlink()
    (store.checkpoint() + 8).write(long(0))
    report = store.verify()
    assert report.ok, report.problems
    assert report.log_end == end
    assert report.torn_tail is not None
    assert report.torn_tail.holds_records


def test_damage_before_the_torn_tail_is_an_error(patient: Callable[[str], Patient]) -> None:
    store = patient("unclean-tail")
    # What the checkpoint knows as flushed, a crash has not touched.
    store.checkpoint().write(long(1795219334518))
    record = store.records[50]
    (store.record(record) + 88).flip()
    report = store.expect("body-crc", store.record(record))
    assert report.errors == 1
    assert report.torn_tail is not None
    assert report.log_end == 1797718


def test_damage_past_what_was_flushed_is_a_torn_tail(patient: Callable[[str], Patient]) -> None:
    store = patient("unclean")
    record = store.records[1200]
    (store.record(record) + 88).flip()
    report = store.verify()
    assert report.ok
    assert report.torn_tail is not None
    assert report.torn_tail.physical_offset == record.physical_offset
    assert report.torn_tail.holds_records


def test_a_log_that_is_all_garbage_is_given_up(basic: Patient) -> None:
    path = basic.store / "commitlog" / f"{262144 * 4:020d}"
    path.write_bytes(bytes(range(256)) * 1024)
    report = basic.expect("record", Spot(path, 0))
    lost = [r for r in basic.records if r.physical_offset // 262144 == 4]
    assert report.totals == {"record": 1}
    assert report.counts["entriesOfDamagedRecords"] == len(lost)


# Nothing guards these, and nothing else in a store repeats them. (Of ports and reconsumeTimes, what
# no broker could have written is noticed.)
UNGUARDED = {
    "flag": range(16, 20),
    "bornTimestamp": range(40, 48),
    "bornHost": [*range(48, 52), 54, 55],
    "storeTimestamp": range(56, 64),
    "storeHost": [*range(64, 68), 70, 71],
    "reconsumeTimes": range(72, 76),
    "preparedTransactionOffset": [82, 83],
}


@pytest.mark.parametrize("mask", [0x01, 0x80])
def test_any_bit_of_a_record_but_for_what_nothing_guards(
    patient: Callable[[str], Patient], mask: int
) -> None:
    store = patient("tiny")
    record = store.records[33]
    spot = store.record(record)
    tried = [*range(90), *range(90, record.store_size - 20, 30)]
    tried += range(record.store_size - 20, record.store_size)
    unnoticed = set()
    for byte in tried:
        (spot + byte).flip(mask)
        if store.verify().ok:
            unnoticed.add(byte)
        (spot + byte).flip(mask)
    assert store.verify().totals == {}
    # sysFlag: NEED_UNWRAP and INNER_BATCH say nothing that could be checked.
    sys_flags = {38} if mask == 1 else {39}
    assert unnoticed <= {byte for bytes_ in UNGUARDED.values() for byte in bytes_} | sys_flags


def test_any_byte_of_a_queue(patient: Callable[[str], Patient]) -> None:
    store = patient("tiny")
    spot = store.entry("T", 1, 8)
    for byte in range(80):
        (spot + byte).flip(0x11)
        assert not store.verify().ok, byte
        (spot + byte).flip(0x11)


def test_any_byte_of_an_index_file(patient: Callable[[str], Patient]) -> None:
    store = patient("tiny")
    spot = Spot(store.index(1), 0)
    first_time_diff = store.index_entry(1).offset + 12  # measured from a file that may be gone
    for byte in range(0, spot.path.stat().st_size, 3):
        (spot + byte).flip(0x11)
        noticed = not store.verify().ok
        assert noticed or first_time_diff <= byte < first_time_diff + 4, byte
        (spot + byte).flip(0x11)


# ---- queues ------------------------------------------------------------------------------------


def test_an_entry_that_leads_elsewhere(basic: Patient) -> None:
    record = basic.records[777]
    (basic.entry_of(record) + 7).flip(0x10)
    problem = basic.expect_only("entry-record", basic.entry_of(record))
    assert f"offset {record.queue_offset}" in problem.text


def test_an_entry_that_leads_out_of_the_log(basic: Patient) -> None:
    record = basic.records[777]
    (basic.entry_of(record) + 2).flip()
    basic.expect("entry-outside", basic.entry_of(record))


@pytest.mark.parametrize(("byte", "kind", "at"), [(11, "entry-size", 8), (19, "tags-code", 12)])
def test_an_entry_of_another_size_or_tag(basic: Patient, byte: int, kind: str, at: int) -> None:
    record = basic.records[777]
    (basic.entry_of(record) + byte).flip()
    basic.expect_only(kind, basic.entry_of(record) + at)


def test_a_hole_in_a_queue(basic: Patient) -> None:
    record = basic.records[777]
    basic.entry_of(record).write(bytes(20))
    basic.expect("entry-unwritten", basic.entry_of(record))


def test_a_hole_of_a_whole_file(basic: Patient) -> None:
    spot = basic.entry("TopicTest", 0, 100)
    spot.path.unlink()
    report = basic.verify()
    lost = [r for r in basic.records if (r.topic, r.queue_id) == ("TopicTest", 0)]
    lost = [r for r in lost if r.queue_offset >= 100]
    assert report.totals == {"missing-entry": len(lost)}
    assert {p.offset for p in report.problems[:3]} == {
        basic.record(record).offset for record in lost[:3]
    }


def test_a_filler_among_messages(basic: Patient) -> None:
    record = basic.records[777]
    basic.entry_of(record).write(CONSUME_QUEUE.fillers(1).tobytes())
    basic.expect("entry-filler", basic.entry_of(record))


def test_entries_that_changed_places(basic: Patient) -> None:
    first = basic.entry("TopicTest", 1, 20)
    one, other = first.read(20), (first + 20).read(20)
    first.write(other + one)
    report = basic.expect("entry-identity", first)
    assert [p.offset for p in report.problems if p.kind == "entry-identity"] == [
        first.offset, first.offset + 20,
    ]  # fmt: skip
    assert report.errors == 2


def test_an_entry_that_is_there_twice(basic: Patient) -> None:
    first = basic.entry("TopicTest", 1, 20)
    (first + 20).write(first.read(20))
    report = basic.expect("entry-identity", first + 20)
    assert report.errors == 1


def test_the_last_entry_is_missing(basic: Patient) -> None:
    record = [r for r in basic.records if (r.topic, r.queue_id) == ("TopicTest", 2)][-1]
    basic.entry_of(record).write(bytes(20))
    problem = basic.expect_only("missing-entry", basic.entry_of(record))
    assert f"record at {record.physical_offset}" in problem.text


def test_the_last_entry_leads_elsewhere(basic: Patient) -> None:
    record = [r for r in basic.records if (r.topic, r.queue_id) == ("TopicTest", 2)][-1]
    (basic.entry_of(record) + 7).flip(0x10)
    assert not basic.verify().ok


def test_entries_behind_the_end(basic: Patient) -> None:
    last = [r for r in basic.records if (r.topic, r.queue_id) == ("TopicTest", 2)][-1]
    spot = basic.entry_of(last) + 20
    spot.write(basic.entry("TopicTest", 1, 5).read(20))
    problem = basic.expect_only("stale-entries", spot, "note")
    assert problem.text.startswith("1 entries")


def test_a_missing_queue(patient: Callable[[str], Patient]) -> None:
    store = patient("tiny")
    lost = [r for r in store.records if r.queue_id == 1]
    for path in (store.store / "consumequeue" / "T" / "1").iterdir():
        path.unlink()
    (store.store / "consumequeue" / "T" / "1").rmdir()
    problem = store.expect_only("missing-queue", store.record(lost[0]))
    assert f"T/1 for {len(lost)} record(s)" in problem.text


def test_a_queue_of_a_deleted_topic(patient: Callable[[str], Patient]) -> None:
    store = patient("tiny")
    config = store.store / "config" / "topics.json"
    config.write_text('{"topicConfigTable":{"other":{"readQueueNums":1,"writeQueueNums":1}}}')
    for queue in (0, 1):
        for path in (store.store / "consumequeue" / "T" / str(queue)).iterdir():
            path.unlink()
        (store.store / "consumequeue" / "T" / str(queue)).rmdir()
    (store.store / "consumequeue" / "T").rename(store.store / "consumequeue" / "other")
    (store.store / "consumequeue" / "other" / "0").mkdir()
    report = store.verify()
    assert report.ok
    assert report.totals == {"missing-queue": 2}


def test_a_topic_that_was_deleted_and_made_anew(patient: Callable[[str], Patient]) -> None:
    store = patient("boundary")
    records = [r for r in store.records if r.queue_id == 0]
    kept = records[-7:]
    for slot, record in enumerate(kept):
        (store.record(record) + 20).write(long(slot))
    size = store.meta.consumequeue_file_size
    entries = b"".join(store.entry_of(record).read(20) for record in kept)
    folder = store.store / "consumequeue" / kept[0].topic / "0"
    for path in folder.iterdir():
        path.unlink()
    (folder / f"{0:020d}").write_bytes(entries.ljust(size, b"\0"))
    report = store.verify()
    assert report.ok, report.problems
    assert report.totals == {"older-than-queue": len(records) - 7}


def test_a_lost_consumequeue(basic: Patient) -> None:
    (basic.store / "consumequeue").rename(basic.golden / "elsewhere")
    basic.expect_only("no-queues", basic.store / "consumequeue")


@pytest.mark.parametrize("folder", ["commitlog", "consumequeue/TopicTest/0"])
def test_an_empty_file_with_a_segments_name(basic: Patient, folder: str) -> None:
    stray = basic.store / folder / "00000000000000000007"
    stray.write_bytes(b"")
    basic.expect_only("stray-file", stray)


def test_a_short_file_of_a_queue(basic: Patient) -> None:
    path = basic.entry("TopicTest", 0, 0).path
    path.write_bytes(path.read_bytes()[:1003])
    report = basic.expect("queue-file", path)
    assert report.totals["entry-unwritten"] > 0


def test_an_entry_before_the_begin(patient: Callable[[str], Patient]) -> None:
    store = patient("trimmed-raw")
    assert store.verify().counts["expiredEntries"] > 20
    first = min((store.store / "consumequeue" / "TopicTest" / "0").iterdir())
    spot = Spot(first, 3 * 20)
    spot.write(bytes(20))
    store.expect("entry-before-begin", spot)


def test_extension_units(patient: Callable[[str], Patient]) -> None:
    store = patient("extcq")
    record = next(r for r in store.records if r.topic == "ExtTopic" and r.queue_offset == 3)
    entry = store.entry_of(record)
    (entry + 19).flip(4)  # the address
    store.expect("ext-unit", entry + 12)
    (entry + 19).flip(4)
    address = int.from_bytes((entry + 12).read(8), "big") - (1 << 63)
    folder = store.store / "consumequeue_ext" / "ExtTopic" / str(record.queue_id)
    unit = Spot(folder / f"{0:020d}", address)
    for byte in (0, 5, 15, 19):  # size, tagsCode, storeTimestamp, size of the bit map
        (unit + byte).flip()
        store.expect_only("ext-unit", entry + 12)
        (unit + byte).flip()
    unit.path.unlink()
    assert store.verify().totals["ext-unit"] > 1


def test_due_times(patient: Callable[[str], Patient]) -> None:
    store = patient("delayed")
    record = next(r for r in store.records if r.topic == "SCHEDULE_TOPIC_XXXX")
    (store.entry_of(record) + 19).flip()
    store.expect_only("tags-code", store.entry_of(record) + 12)
    other = store.verify(delay_levels="1m 1h")
    assert other.totals["tags-code"] > 10
    with pytest.raises(ValueError, match="5x"):
        store.verify(delay_levels="1s 5x")


def test_a_delay_that_is_no_number(patient: Callable[[str], Patient]) -> None:
    store = patient("delayed")
    record = next(r for r in store.records if r.topic == "SCHEDULE_TOPIC_XXXX")
    start = record.store_size - len(record.properties_raw)
    (store.record(record) + start + record.properties_raw.index(b"DELAY\x01") + 6).write(b"x")
    store.expect("delay", store.record(record))


def test_an_entry_of_a_light_queue(patient: Callable[[str], Patient]) -> None:
    store = patient("lmq")
    spot = store.entry("%LMQ%dev1", 0, 5)
    (spot + 11).flip()
    store.expect_only("entry-size", spot + 8)
    spot.write(store.entry("%LMQ%dev1", 0, 6).read(20))
    store.expect("entry-identity", spot)


# ---- index -------------------------------------------------------------------------------------


def test_a_changed_hash(basic: Patient) -> None:
    (basic.index_entry(50) + 3).flip()
    basic.expect("index-entry", basic.index_entry(50))
    report = basic.expect("index-chain", basic.index_entry(50))
    assert report.totals["missing-key"] == 1


def test_a_changed_offset(basic: Patient) -> None:
    (basic.index_entry(50) + 11).flip()
    basic.expect("index-entry", basic.index_entry(50))


def test_a_changed_time(basic: Patient) -> None:
    (basic.index_entry(50) + 15).flip()
    basic.expect_only("index-time", basic.index_entry(50) + 12)


def test_a_changed_link(basic: Patient) -> None:
    entry = next(
        n for n in range(1, 500) if int.from_bytes((basic.index_entry(n) + 16).read(4), "big")
    )
    (basic.index_entry(entry) + 16).write(bytes(4))
    report = basic.verify()
    assert report.totals["index-chain"] == 1
    (basic.index_entry(entry) + 16).write((599).to_bytes(4, "big"))
    basic.expect("index-chain", basic.index_entry(entry) + 16)


def test_a_changed_slot(basic: Patient) -> None:
    path = basic.index()
    slot = next(n for n in range(500) if any(Spot(path, 40 + 4 * n).read(4)))
    Spot(path, 40 + 4 * slot).write(bytes(4))
    report = basic.expect("index-slot", Spot(path, 40 + 4 * slot))
    assert report.totals["index-chain"] == 1
    basic.expect("index-header", Spot(path, 32))


HEADER = {"begin": 0, "end": 8, "beginPhyOffset": 16, "endPhyOffset": 24, "slots": 32, "count": 36}


@pytest.mark.parametrize("field", HEADER)
def test_a_changed_header(basic: Patient, field: str) -> None:
    spot = Spot(basic.index(2), HEADER[field])
    (spot + (3 if field in ("slots", "count") else 7)).flip()
    basic.expect("index-header", spot)


@pytest.mark.parametrize("lone", [False, True])
@pytest.mark.parametrize("count", [-1, 0, 1])
def test_a_header_that_hides_its_entries(basic: Patient, count: int, lone: bool) -> None:
    if lone:  # then no other file of its size tells the number of slots
        for path in sorted((basic.store / "index").iterdir())[1:]:
            path.unlink()
    spot = Spot(basic.index(), HEADER["count"])
    spot.write(count.to_bytes(4, "big", signed=True))
    found = basic.verify()
    assert [p.severity for p in found.problems if p.kind == "index-header"] == ["error"]
    Spot(basic.index(), 0).write(bytes(40))
    found = basic.verify()
    assert "error" in [p.severity for p in found.problems if p.kind == "index-header"]


def test_a_lost_stretch_of_an_index_file(basic: Patient) -> None:
    basic.index_entry(100).write(bytes(20 * 10))
    report = basic.expect("index-entry", basic.index_entry(100))
    assert report.totals["missing-key"] >= 10


@pytest.mark.parametrize("length", [0, 39, 40, 500, 3000])
def test_a_short_index_file(basic: Patient, length: int) -> None:
    path = basic.index(3)
    path.write_bytes(path.read_bytes()[:length])
    report = basic.verify()
    assert not report.ok
    assert any(p.file == str(path) for p in report.problems)


def test_a_lost_index_file(basic: Patient) -> None:
    basic.index(3).unlink()
    problem = basic.expect_only("unindexed", basic.store / "index", "note")
    assert problem.text.startswith("59")


def test_a_stray_file_in_the_index(basic: Patient) -> None:
    stray = basic.store / "index" / "readme"
    stray.write_bytes(b"x")
    basic.expect_only("stray-file", stray, "note")


# ---- DLedger -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("byte", "at"), [(15, 8), (23, 16), (47, 4)])
def test_headers_of_dledger(patient: Callable[[str], Patient], byte: int, at: int) -> None:
    store = patient("dledger")
    header = store.record(store.records[700]) + -48
    (header + byte).flip()
    store.expect("dledger-entry", header + at)


@pytest.mark.parametrize("byte", [3, 7])
def test_headers_of_dledger_that_hide_their_record(
    patient: Callable[[str], Patient], byte: int
) -> None:
    store = patient("dledger")
    header = store.record(store.records[700]) + -48
    (header + byte).flip()
    store.expect("record", header)


@pytest.mark.parametrize("byte", [3, 11, 15, 23, 31])
def test_index_of_dledger(patient: Callable[[str], Patient], byte: int) -> None:
    store = patient("dledger")
    (path,) = store.store.glob("dledger-*/index/*")
    (Spot(path, 32 * 700) + byte).flip()
    report = store.verify()
    assert report.totals.get("dledger-entry") == (None if byte == 3 else 1)
    if byte != 31:  # the term is compared with the entry's only
        # Of a wrong size it is the next unit that does not fit.
        store.expect("dledger-index", Spot(path, 32 * (701 if byte == 15 else 700)))


# ---- the rest ----------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 8, 16])
def test_a_checkpoint_ahead_of_the_log(basic: Patient, at: int) -> None:
    newest = max(record.store_timestamp for record in basic.records)
    spot = basic.checkpoint() + at
    spot.write(long(newest + 1))
    basic.expect_only("checkpoint", spot)
    spot.write(long(-1))
    basic.expect_only("checkpoint", spot)
    spot.write(long(newest))
    assert basic.verify().totals == {}


@pytest.mark.parametrize("name", ["basic", "unclean"])
def test_a_short_checkpoint(patient: Callable[[str], Patient], name: str) -> None:
    store = patient(name)
    store.checkpoint().path.write_bytes(b"\0" * 20)
    store.expect("checkpoint", store.checkpoint().path)


@pytest.mark.parametrize(
    ("name", "severity"), [("topics.json", "error"), ("topics.json.bak", "note")]
)
def test_a_configuration_that_cannot_be_read(
    patient: Callable[[str], Patient], name: str, severity: str
) -> None:
    store = patient("live")
    path = store.store / "config" / name
    path.write_text('{"topicConfigTable":{')
    store.expect_only("config", path, severity)


def test_queues_that_the_configuration_does_not_know(patient: Callable[[str], Patient]) -> None:
    store = patient("live")
    path = store.store / "config" / "topics.json"
    path.write_text(
        '{"topicConfigTable":{"LiveTopic":{"readQueueNums":2,"writeQueueNums":2},'
        '"LiveOrder":{"readQueueNums":8},"LiveTran":{"writeQueueNums":8},"LiveBatch":{}}}'
    )
    report = store.expect("topic-config", store.store / "consumequeue" / "LiveTopic" / "3", "note")
    store.expect("topic-config", store.store / "consumequeue" / "LiveDelay" / "0", "note")
    assert not any("LiveOrder" in p.file or "%RETRY%" in p.file for p in report.problems)


@pytest.mark.parametrize(
    ("topic", "queue_id", "offset", "end"),
    [("LiveTopic", 3, 226, 225), ("LiveTopic", 9, 1, 0), ("unused", 0, 5, 0)],
)
def test_an_offset_of_a_group_past_the_end_of_its_queue(
    patient: Callable[[str], Patient], topic: str, queue_id: int, offset: int, end: int
) -> None:
    store = patient("live")
    topics = store.store / "config" / "topics.json"
    topics.write_text(topics.read_text().replace('Table":{', 'Table":{"unused":{},', 1))
    path = store.store / "config" / "consumerOffset.json"
    path.write_text(json.dumps({"offsetTable": {f"{topic}@a": {str(queue_id): offset}}}))
    problem = store.expect_only("group-offset", path, "note")
    place = f"{topic}/{queue_id}"
    assert problem.text == f"group a is at offset {offset} of {place}, which ends at {end}"
    table = {"deleted@a": {"0": offset}, f"{topic}@a": {str(queue_id): -1}}
    path.write_text(json.dumps({"offsetTable": table}))
    assert store.verify().totals == {}


def test_an_offset_past_a_queue_that_is_missing_or_may_be_completed(
    patient: Callable[[str], Patient],
) -> None:
    store = patient("live")
    path = store.store / "config" / "consumerOffset.json"
    path.write_text(json.dumps({"offsetTable": {"LiveTopic@a": {"3": 225}}}))
    (store.store / "abort").touch()
    queue = store.store / "consumequeue" / "LiveTopic" / "3"
    for file in queue.iterdir():
        data = bytearray(file.read_bytes())
        data[220 * 20 : 225 * 20] = bytes(100)
        file.write_bytes(data)
    report = store.expect("group-offset", path, "note")
    (text,) = [each.text for each in report.problems if each.kind == "group-offset"]
    assert text.endswith("which ends at 220; a start may complete it from the log")
    for file in queue.iterdir():
        file.unlink()
    queue.rmdir()
    assert "group-offset" not in store.verify().totals


def test_many_problems_are_counted(basic: Patient) -> None:
    for record in basic.records[200:260]:
        (basic.entry_of(record) + 19).flip()
    report = basic.verify(listed=5)
    assert len(report.problems) == 5
    assert report.totals == {"tags-code": 60}
    assert report.errors == 60


@pytest.mark.fault
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    "name",
    ["tiny", "live", "extcq", "lmq", "trimmed-raw", "unclean-crc", "v5v2topic", "transactions"],
)
def test_no_damage_stops_a_verification(
    patient: Callable[[str], Patient], name: str, seed: int
) -> None:
    store = patient(name)
    chance = random.Random(f"{name} {seed} {random.random()}")  # another one in each run
    for _ in range(4):
        files = sorted(path for path in store.store.rglob("*") if path.is_file())
        path = chance.choice(files)
        data = bytearray(path.read_bytes())
        at = chance.randrange(len(data) + 1)
        length = chance.choice([1, 8, 20, 600])
        kind = chance.choice(["zeros", "noise", "cut", "gone", "stray"])
        if kind == "cut":
            path.write_bytes(data[:at])
        elif kind == "gone":
            path.unlink()
        elif kind == "stray":
            (path.parent / chance.choice(["x", f"{7:020d}"])).write_bytes(chance.randbytes(30))
        else:
            length = len(data[at : at + length])
            data[at : at + length] = bytes(length) if kind == "zeros" else chance.randbytes(length)
            path.write_bytes(data)
        report = store.verify()
        assert len(report.to_dict()["problems"]) == len(report.problems)
