from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rmqstore_spark.errors import CorruptStoreError, SegmentExpiredError
from rmqstore_spark.files.log_files import segment_start
from rmqstore_spark.files.segments import MAX_ENTRY, Segments, read_ranges
from rmqstore_spark.files.systems.base import Listing, join
from rmqstore_spark.files.systems.local import LocalFiles
from tests.files.conftest import Publish
from tests.support.stores.golden import load_meta, load_records

SIZE = 1000
START = 5000
DATA = np.random.default_rng(3).integers(0, 256, 4 * SIZE, np.uint8).tobytes()

FOLDERS = {
    "basic": ["commitlog"],
    "boundary": ["commitlog"],
    "dledger": ["dledger-n0/data"],
    "flags": ["commitlog"],
    "multipath": ["clA", "clB"],
    "trimmed": ["commitlog"],
    "v5v2topic": ["commitlog"],
}


def write(folder: Path, start: int, data: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{start:020}"
    path.write_bytes(data)
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Four files of 1,000 bytes from offset 5,000 on."""
    folder = tmp_path / "log"
    for number in range(4):
        begin = number * SIZE
        write(folder, START + begin, DATA[begin : begin + SIZE])
    return folder


def entries(segments: Segments, spans: list[tuple[int, int]], **options: int) -> list[bytes]:
    offsets, lengths = np.array(spans, np.int64).reshape(-1, 2).T
    buffer, positions = segments.read_entries(offsets, lengths, max_gap=options.get("max_gap"))
    return [
        buffer[position : position + length].tobytes()
        for position, (_, length) in zip(positions.tolist(), spans, strict=True)
    ]


def wanted(spans: list[tuple[int, int]]) -> list[bytes]:
    return [DATA[offset - START : offset - START + length] for offset, length in spans]


# ---- golden stores ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(FOLDERS))
def test_every_record_lies_where_rocketmq_says(
    golden: Callable[[str], Path], publish: Publish, name: str
) -> None:
    store = golden(name)
    files, path = publish(store / "store")
    segments = Segments.load(files, [join(path, folder) for folder in FOLDERS[name]])
    records = load_records(store)
    offsets = np.array([record.physical_offset for record in records], np.int64)
    lengths = np.array([record.store_size for record in records], np.int64)
    assert segments.covers(offsets, lengths).all()
    assert segments.gaps == []
    assert segments.odd_sizes == []
    assert segments.strays == []
    buffer, positions = segments.read_entries(offsets, lengths)
    for record, position in zip(records, positions.tolist(), strict=True):
        data = buffer[position : position + record.store_size].tobytes()
        assert int.from_bytes(data[:4], "big") == record.store_size
        assert int.from_bytes(data[28:36], "big") == record.physical_offset
        assert record.body in data
        assert data.endswith(record.properties_raw)


def test_segment_sizes_are_those_of_the_configuration(golden: Callable[[str], Path]) -> None:
    for name in ("basic", "boundary", "multipath"):
        folders = [str(golden(name) / "store" / folder) for folder in FOLDERS[name]]
        segments = Segments.load(LocalFiles(), folders)
        assert segments.segment_size == load_meta(golden(name)).commitlog_file_size


# ---- what lies in the folder --------------------------------------------------------------------


def test_extent(log: Path, local: LocalFiles) -> None:
    segments = Segments.load(local, [str(log)])
    assert (segments.min_offset, segments.end_offset) == (START, START + 4 * SIZE)
    assert [segment.start for segment in segments] == [5000, 6000, 7000, 8000]
    assert segments.starts.tolist() == [5000, 6000, 7000, 8000]
    assert len(segments) == 4
    assert segments[-1].end == segments.end_offset
    assert segments.locate(6999).path == str(log / f"{6000:020}")


@pytest.mark.parametrize("folders", [[], ["nothing"], ["empty"], ["nothing", "empty"]])
def test_a_log_without_files(tmp_path: Path, local: LocalFiles, folders: list[str]) -> None:
    (tmp_path / "empty").mkdir()
    segments = Segments.load(local, [str(tmp_path / folder) for folder in folders])
    assert (segments.min_offset, segments.end_offset, len(segments)) == (0, 0, 0)
    assert not segments.covers([0, 5, -1], [1, 1, 1]).any()
    assert segments.gaps == []
    with pytest.raises(SegmentExpiredError):
        segments.read(0, 1)
    with pytest.raises(SegmentExpiredError):
        segments.read_entries([0], [10])
    buffer, positions = segments.read_entries([], [])
    assert len(positions) == 0
    assert buffer.dtype == np.uint8


def test_strays_are_told_and_passed_over(log: Path, local: LocalFiles) -> None:
    (log / "0000").write_bytes(b"short name")
    (log / ".DS_Store").write_bytes(b"x")
    (log / f"{9000:020}.tmp").write_bytes(b"x")
    (log / ("٣" * 20)).write_bytes(b"digits, but not ours")
    (log / ("9" * 20)).write_bytes(b"beyond a long")
    (log / f"{2**63 - 4:020}").write_bytes(b"ends beyond a long")
    (log / f"{9000:020}").mkdir()
    (log / f"{10000:020}").write_bytes(b"")
    (log / f"{11000:020}").symlink_to(log / "nowhere")
    (log / f"{12000:020}").symlink_to(log / f"{12000:020}")
    os.mkfifo(log / f"{13000:020}")
    segments = Segments.load(local, [str(log)])
    assert segments.end_offset == START + 4 * SIZE
    assert len(segments) == 4
    assert len(segments.strays) == 11
    assert all(stray.reason for stray in segments.strays)
    assert {Path(stray.path).name for stray in segments.strays} == {
        path.name for path in log.iterdir()
    } - {f"{START + number * SIZE:020}" for number in range(4)}


def test_holes_are_noticed(log: Path, local: LocalFiles) -> None:
    (log / f"{6000:020}").unlink()
    with open(log / f"{7000:020}", "r+b") as file:
        file.truncate(300)
    segments = Segments.load(local, [str(log)])
    assert segments.gaps == [(6000, 7000), (7300, 8000)]
    assert [segment.start for segment in segments.odd_sizes] == [7000]
    good = segments.covers([5999, 6000, 6999, 7000, 7299, 7300, 8000], [1] * 7)
    assert good.tolist() == [True, False, False, True, True, False, True]
    for missing in (6000, 6999, 7300, 7999):
        with pytest.raises(SegmentExpiredError, match="storePathCommitLog"):
            segments.read(missing, 1)
    with pytest.raises(SegmentExpiredError, match="6000"):
        segments.read_range(5990, 20)
    assert entries(segments, [(5000, 5), (7000, 5), (8000, 5)]) == wanted(
        [(5000, 5), (7000, 5), (8000, 5)]
    )


def test_a_file_counts_up_to_where_the_next_begins(log: Path, local: LocalFiles) -> None:
    write(log, 5000, DATA[:1000] + b"!" * 700)
    segments = Segments.load(local, [str(log)])
    assert segments[0].end == 6000
    assert segments.read(5990, 100) == DATA[990:1000]
    assert not segments.covers([5990], [20]).any()
    assert segments.read(6000, 10) == DATA[1000:1010]


@pytest.mark.parametrize("size", [1, 300, 999, SIZE, 3 * SIZE])
@pytest.mark.parametrize("start", [5001, 5700, 6001, 8999])
def test_a_file_within_the_stretch_of_another_is_no_part_of_the_log(
    log: Path, local: LocalFiles, start: int, size: int
) -> None:
    write(log, start, b"?" * size)
    segments = Segments.load(local, [str(log)])
    assert segments.read_range(START, 4 * SIZE) == DATA
    assert [Path(stray.path).name for stray in segments.strays] == [f"{start:020}"]
    assert "holds the same part" in segments.strays[0].reason


def test_a_file_within_the_only_other_one(tmp_path: Path, local: LocalFiles) -> None:
    write(tmp_path, START, DATA[:SIZE])
    write(tmp_path, START + 100, b"?" * 50)
    segments = Segments.load(local, [str(tmp_path)])
    assert segments.read_range(START, SIZE) == DATA[:SIZE]
    assert [Path(stray.path).name for stray in segments.strays] == [f"{START + 100:020}"]


def test_a_file_that_is_far_too_long_hides_none_of_the_others(log: Path, local: LocalFiles) -> None:
    with open(log / f"{5000:020}", "r+b") as file:
        file.truncate(1 << 40)
    segments = Segments.load(local, [str(log)])
    assert segments.read_range(START, 4 * SIZE) == DATA
    assert segments.strays == []
    assert segments.odd_sizes == list(segments)[1:3]  # against the first one's


def test_a_shorter_last_file_is_fine(log: Path, local: LocalFiles) -> None:
    write(log, 8000, DATA[3000:3300])
    segments = Segments.load(local, [str(log)])
    assert segments.end_offset == 8300
    assert segments.odd_sizes == []
    assert segments.gaps == []


def test_several_folders_make_one_log(tmp_path: Path, local: LocalFiles) -> None:
    for number in range(4):
        begin = number * SIZE
        write(tmp_path / "ab"[number % 2], START + begin, DATA[begin : begin + SIZE])
    write(tmp_path / "b", START, b"?" * SIZE)
    folders = [str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "c")]
    segments = Segments.load(local, folders)
    assert segments.read_range(START, 4 * SIZE) == DATA
    assert [stray.path for stray in segments.strays] == [str(tmp_path / "b" / f"{START:020}")]
    assert entries(segments, [(5999, 1), (6000, 1)]) == wanted([(5999, 1), (6000, 1)])


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("0" * 20, 0),
        ("00000000000000262144", 262144),
        ("0" * 19, None),
        ("0" * 21, None),
        ("-0000000000000000001", None),
        ("+0000000000000000001", None),
        ("0000000000000000_001", None),
        ("0000000000000000000²", None),
        (" " * 19 + "1", None),
    ],
)
def test_names(name: str, start: int | None) -> None:
    assert segment_start(name) == start


# ---- reading ------------------------------------------------------------------------------------


def test_a_read_ends_with_its_segment(log: Path, publish: Publish) -> None:
    files, path = publish(log)
    segments = Segments.load(files, [path])
    assert segments.read(5990, 5) == DATA[990:995]
    assert segments.read(5990, 1 << 40) == DATA[990:1000]
    out = np.zeros(50, np.uint8)
    assert segments.read_into(5990, out) == 10
    assert out[:10].tobytes() == DATA[990:1000]
    assert segments.read_range(5990, 2500) == DATA[990:3490]
    assert segments.read_range(5990, 0) == b""


def test_ranges_of_several_logs_are_read_at_once(log: Path, publish: Publish) -> None:
    files, path = publish(log)
    segments, other = (Segments.load(files, [path]) for _ in range(2))
    wanted = [(segments, 5990, 2500), (other, 5000, 3), (segments, 7, 0), (other, 8999, 1)]
    assert read_ranges(wanted) == [DATA[990:3490], DATA[:3], b"", DATA[3999:]]
    assert read_ranges([(segments, 7, 0)]) == [b""]
    assert read_ranges([]) == []
    with pytest.raises(SegmentExpiredError, match="has expired"):
        read_ranges([(segments, 5990, 10), (segments, 4999, 1)])


@pytest.mark.parametrize("max_gap", [None, 0, 10, 5000])
def test_entries_in_any_order(log: Path, publish: Publish, max_gap: int | None) -> None:
    files, path = publish(log)
    segments = Segments.load(files, [path])
    random = np.random.default_rng(max_gap)
    offsets = random.integers(0, 4 * SIZE - 1, 300)
    lengths = np.minimum(random.integers(1, 200, 300), SIZE - offsets % SIZE)
    lists = [
        sorted(zip((offsets + START).tolist(), lengths.tolist(), strict=True)),
        list(zip((offsets + START).tolist(), lengths.tolist(), strict=True)),
        [(5100, 50), (5100, 50), (5000, 1000), (5120, 10), (5100, 50), (8999, 1)],
        [(5000, 1000), (6000, 1000), (7000, 1000), (8000, 1000)],
    ]
    for spans in lists:
        offsets, lengths = np.array(spans).T
        buffer, positions = segments.read_entries(offsets, lengths, max_gap=max_gap)
        for (_, length), position, data in zip(
            spans, positions.tolist(), wanted(spans), strict=True
        ):
            assert buffer[position : position + length].tobytes() == data


def test_a_buffer_is_used_again_and_replaced_when_too_small(log: Path, local: LocalFiles) -> None:
    segments = Segments.load(local, [str(log)])
    small = np.zeros(100, np.uint8)
    kept, _ = segments.read_entries([5000, 5100], [50, 50], buffer=small, max_gap=0)
    assert kept is small
    grown, positions = segments.read_entries([5000, 5999], [100, 1], buffer=small, max_gap=0)
    assert grown is not small
    assert len(grown) >= 101
    assert grown[positions[1]] == DATA[999]
    again, _ = segments.read_entries([8000], [101], buffer=grown)
    assert again is grown


def test_lengths_may_be_of_the_queues_own_type(log: Path, local: LocalFiles) -> None:
    kind = np.dtype([("physicalOffset", ">i8"), ("size", ">i4"), ("tagsCode", ">i8")])
    queue = np.array([(5010, 20, 7), (7010, 30, 8)], kind)
    segments = Segments.load(local, [str(log)])
    assert segments.covers(queue["physicalOffset"], queue["size"]).all()
    buffer, positions = segments.read_entries(queue["physicalOffset"], queue["size"])
    assert buffer[positions[1] : positions[1] + 30].tobytes() == DATA[2010:2040]


BAD = [
    (START, 0, CorruptStoreError),
    (START, -1, CorruptStoreError),
    (START, -(2**31), CorruptStoreError),
    (START, MAX_ENTRY + 1, CorruptStoreError),
    (START, 2**31 - 1, CorruptStoreError),
    (START, SIZE + 1, CorruptStoreError),
    (START + 999, 2, CorruptStoreError),
    (START + 4 * SIZE, 1, CorruptStoreError),
    (START + 4 * SIZE - 1, 2, CorruptStoreError),
    (2**63 - 1, 2, CorruptStoreError),
    (2**63 - 1, MAX_ENTRY, CorruptStoreError),
    (-1, 1, CorruptStoreError),
    (-(2**63), 1, CorruptStoreError),
    (START - 1, 1, SegmentExpiredError),
    (0, 100, SegmentExpiredError),
]


@pytest.mark.threat("Lengths are checked before allocation")
@pytest.mark.parametrize(("offset", "length", "error"), BAD)
def test_a_bad_entry_is_sorted_out_or_named(
    log: Path, local: LocalFiles, offset: int, length: int, error: type[Exception]
) -> None:
    segments = Segments.load(local, [str(log)])
    offsets, lengths = [START, offset, START + 10], [10, length, 10]
    assert segments.covers(offsets, lengths).tolist() == [True, False, True]
    with pytest.raises(error) as caught:
        segments.read_entries(offsets, lengths)
    assert str(log) in str(caught.value)


def test_an_entry_over_the_end_is_named_with_file_and_offset(log: Path, local: LocalFiles) -> None:
    segments = Segments.load(local, [str(log)])
    with pytest.raises(CorruptStoreError) as caught:
        segments.read_entries([START, 6990], [10, 20])
    assert caught.value.file == str(log / f"{6000:020}")
    assert caught.value.offset == 990


@pytest.mark.parametrize("offset", [0, START - 1])
def test_offsets_before_the_first_file_have_expired(
    log: Path, local: LocalFiles, offset: int
) -> None:
    segments = Segments.load(local, [str(log)])
    for read in (segments.locate, lambda at: segments.read(at, 1)):
        with pytest.raises(SegmentExpiredError, match=f"{START} to {START + 4 * SIZE}"):
            read(offset)


@pytest.mark.parametrize("offset", [START + 4 * SIZE, 2**63 - 1, 2**64, -1])
def test_offsets_past_the_end_are_damage(log: Path, local: LocalFiles, offset: int) -> None:
    segments = Segments.load(local, [str(log)])
    with pytest.raises(CorruptStoreError):
        segments.locate(offset)


@pytest.mark.threat("Lengths are checked before allocation")
def test_entries_without_bound_are_not_read_at_once(tmp_path: Path, local: LocalFiles) -> None:
    folder = tmp_path / "sparse"
    path = write(folder, 0, b"")
    with open(path, "r+b") as file:
        file.truncate(2 << 30)
    segments = Segments.load(local, [str(folder)])
    offsets = np.arange(0, 2 << 30, 16 << 20)
    assert segments.covers(offsets, np.full(len(offsets), 16 << 20)).all()
    with pytest.raises(ValueError, match="fewer entries"):
        segments.read_entries(offsets, np.full(len(offsets), 16 << 20))


# ---- a store that changes -----------------------------------------------------------------------


def test_new_files_show_after_refresh(log: Path, local: LocalFiles) -> None:
    segments = Segments.load(local, [str(log)])
    assert not segments.refresh()
    write(log, 9000, b"n" * SIZE)
    (log / f"{5000:020}").unlink()
    assert segments.end_offset == 9000
    assert segments.refresh()
    assert (segments.min_offset, segments.end_offset) == (6000, 10_000)
    assert segments.read(9000, 3) == b"nnn"


def test_a_file_that_vanished_is_expired(log: Path, local: LocalFiles) -> None:
    segments = Segments.load(local, [str(log)])
    gone = log / f"{6000:020}"
    gone.unlink()
    out = np.zeros(5, np.uint8)
    for read in (
        lambda: segments.read(6100, 5),
        lambda: segments.read_into(6100, out),
        lambda: segments.read_entries([5000, 6100, 7000], [5, 5, 5]),
        lambda: read_ranges([(segments, 5000, 5), (segments, 6100, 5)]),
    ):
        with pytest.raises(SegmentExpiredError) as caught:
            read()
        assert caught.value.file == str(gone)
        assert caught.value.offset == 100


def test_a_file_that_vanished_while_open_is_read_to_its_end(log: Path, local: LocalFiles) -> None:
    segments = Segments.load(local, [str(log)])
    assert segments.read(6000, 5) == DATA[1000:1005]
    (log / f"{6000:020}").unlink()
    assert segments.read(6500, 500) == DATA[1500:2000]
    assert entries(segments, [(6700, 10)]) == wanted([(6700, 10)])


def test_a_file_made_anew_under_the_same_name_is_noticed(log: Path, local: LocalFiles) -> None:
    segments = Segments.load(local, [str(log)])
    assert segments.read(6000, 5) == DATA[1000:1005]
    (log / f"{6000:020}").unlink()
    write(log, 6000, b"N" * SIZE)
    segments.refresh()
    assert segments.read(6000, 5) == b"NNNNN"
    assert entries(segments, [(6700, 3)]) == [b"NNN"]


def test_a_file_cut_short_is_damage(log: Path, local: LocalFiles) -> None:
    segments = Segments.load(local, [str(log)])
    path = log / f"{6000:020}"
    out = np.zeros(SIZE, np.uint8)
    for length in range(SIZE - 1, 100, -7):
        os.truncate(path, length)
        assert entries(segments, [(6000 + length - 3, 3)]) == wanted([(6000 + length - 3, 3)])
        for read in (
            lambda: segments.read(6090, 5000),
            lambda: segments.read_into(6000, out),
            lambda at=6000 + length: segments.read_entries([5000, 6000, at], [9, 9, 1]),
            lambda: read_ranges([(segments, 5000, 5), (segments, 6090, 2000)]),
        ):
            with pytest.raises(CorruptStoreError, match="ends early") as caught:
                read()
            assert caught.value.file == str(path)
            assert caught.value.offset == length
    segments.refresh()
    assert segments.gaps == [(6000 + length, 7000)]
    assert segments.covers([6000, 6000 + length - 1], [length, 2]).tolist() == [True, False]


def test_segments_travel_to_another_process(log: Path, publish: Publish) -> None:
    files, path = publish(log)
    segments: Segments = pickle.loads(pickle.dumps(Segments.load(files, [path])))
    assert entries(segments, [(5001, 8), (8001, 8)]) == wanted([(5001, 8), (8001, 8)])


class GrowingFiles(LocalFiles):
    """Lists a folder to which files are added meanwhile, and passes over the first of them."""

    def __init__(self, *added: int) -> None:
        super().__init__()
        self._added = list(added)

    def list(self, path: str, *, sizes: bool = True) -> Listing:
        added, self._added = self._added, []
        for start in added:
            write(Path(path), start, bytes(SIZE))
        return [
            info
            for info in super().list(path, sizes=sizes)
            if not added or segment_start(info.name) != added[0]
        ]


def test_a_listing_without_a_file_that_came_meanwhile_does_not_count(log: Path) -> None:
    added = START + 4 * SIZE, START + 5 * SIZE
    files = GrowingFiles(*added)
    segments = Segments.load(files, [str(log)])
    assert (segments.gaps, segments.end_offset) == ([], START + 6 * SIZE)
    later = GrowingFiles(START + 6 * SIZE, START + 7 * SIZE)
    segments._files = later
    assert segments.refresh()
    assert (segments.gaps, segments.end_offset) == ([], START + 8 * SIZE)


def test_a_file_that_is_missing_stays_missing(log: Path) -> None:
    (log / f"{START + SIZE:020}").unlink()
    segments = Segments.load(LocalFiles(), [str(log)])
    assert segments.gaps == [(START + SIZE, START + 2 * SIZE)]
