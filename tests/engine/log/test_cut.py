from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest

from rmqstore_spark.engine.log.cut import end_log
from rmqstore_spark.files.log_files import Segment
from rmqstore_spark.files.segments import Segments
from rmqstore_spark.files.systems.local import LocalFiles
from tests.fault.simulated.calls import Calls
from tests.fault.simulated.disk import Disk

SIZE = 1 << 16


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three segments: one full, one written in part, one of zeros."""
    (tmp_path / "commitlog").mkdir()
    for number, written in enumerate([SIZE, 1000, 0]):
        path = tmp_path / "commitlog" / f"{number * SIZE:020}"
        path.write_bytes(bytes([number + 1]) * written)
        os.truncate(path, SIZE)
    return tmp_path


def segments(store: Path) -> list[Segment]:
    return list(Segments.load(LocalFiles(), [str(store / "commitlog")]))


def content(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((store / "commitlog").iterdir())}


def test_a_log_that_ends_in_zeros_loses_only_what_was_made_ahead(store: Path) -> None:
    before = content(store)
    assert end_log(str(store), segments(store), SIZE + 1000, cause="", now=0) == ()
    assert content(store) == {k: before[k] for k in sorted(before)[:2]}
    assert not (store / "rmqstore").exists()


def test_what_lies_behind_the_end_is_kept_and_wiped(store: Path) -> None:
    before = content(store)
    cuts = end_log(str(store), segments(store), 100, cause="a reason", now=1_700_000_000_123)
    assert content(store) == {f"{0:020}": b"\x01" * 100 + bytes(SIZE - 100)}
    assert [(cut.start, cut.end) for cut in cuts] == [(100, SIZE), (SIZE, SIZE + 1000)]
    assert Path(cuts[0].kept).read_bytes() == b"\x01" * (SIZE - 100)
    assert Path(cuts[1].kept).read_bytes() == before[f"{SIZE:020}"]
    folder = store / "rmqstore" / "cut" / "00000000000000000100-20231114T221320123Z"
    note = json.loads((folder / "cut.json").read_bytes())
    assert (note["logEnd"], note["cause"]) == (100, "a reason")
    assert [entry["kept"] for entry in note["ranges"]] == [cut.kept for cut in cuts]
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_segment_that_begins_at_the_end_stays_and_is_wiped(store: Path) -> None:
    cuts = end_log(str(store), segments(store), SIZE, cause="", now=0)
    assert content(store)[f"{SIZE:020}"] == bytes(SIZE)
    assert [cut.size for cut in cuts] == [1000]
    assert Path(cuts[0].kept).read_bytes()[:1000] == b"\x02" * 1000


def test_what_an_interrupted_run_left_is_done_over(store: Path) -> None:
    partial = store / "rmqstore" / "cut" / "00000000000000000100-20231114T221320123Z.partial"
    partial.mkdir(parents=True)
    (partial / "00000000000000000100").write_bytes(b"half")
    cuts = end_log(str(store), segments(store), 100, cause="", now=1_700_000_000_123)
    assert Path(cuts[0].kept).read_bytes() == b"\x01" * (SIZE - 100)
    assert not partial.exists()


def test_the_same_again_keeps_nothing_more(store: Path) -> None:
    end_log(str(store), segments(store), 100, cause="", now=1)
    before = content(store)
    assert end_log(str(store), segments(store), 100, cause="", now=2) == ()
    assert content(store) == before
    assert len(list((store / "rmqstore" / "cut").iterdir())) == 1


@pytest.mark.fault
def test_a_crash_at_any_moment_leaves_segments_of_full_length(store: Path) -> None:
    disk = Disk(store)
    with Calls(str(store)) as calls:
        end_log(str(store), segments(store), SIZE, cause="", now=0)
    for event in calls.events:
        disk.do([event])
        for seed in range(3):
            left = store.parent / "left"
            disk.copy().crash(random.Random(seed), "in part", left)
            assert {path.stat().st_size for path in (left / "commitlog").iterdir()} == {SIZE}
            shutil.rmtree(left)
