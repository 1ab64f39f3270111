"""One behaviour, whatever the file system."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.files.systems.base import FileRange, Files, join
from tests.files.conftest import Publish

DATA = np.random.default_rng(7).integers(0, 256, 300_000, np.uint8).tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "a" / "b" / "c").mkdir(parents=True)
    (root / "a" / "one").write_bytes(b"1")
    (root / "a" / "b" / "c" / "deep").write_bytes(b"deep")
    (root / "data").write_bytes(DATA)
    (root / "主题 %x").write_bytes(b"name")
    return root


def _spans(files: Files, path: str, spans: list[tuple[int, int]]) -> tuple[int, bytes]:
    offsets, lengths = np.array(spans, np.int64).reshape(-1, 2).T.copy()
    out = np.zeros(int(lengths.sum()), np.uint8)
    return files.read_spans(path, offsets, lengths, out), out.tobytes()


def test_a_folder_is_listed_by_name_with_sizes(publish: Publish, folder: Path) -> None:
    files, path = publish(folder)
    listed = [(info.name, info.size, info.is_dir) for info in files.list(path)]
    assert listed == [("a", 0, True), ("data", len(DATA), False), ("主题 %x", 4, False)]
    names = [(info.name, info.is_dir) for info in files.list(path, sizes=False)]
    assert names == [(name, is_dir) for name, _, is_dir in listed]


@pytest.mark.parametrize("name", ["nothing", "data", "data/below"])
def test_what_is_no_folder_is_not_found(publish: Publish, folder: Path, name: str) -> None:
    files, path = publish(folder)
    with pytest.raises(FileNotFoundError):
        files.list(join(path, name))


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_a_tree_is_walked_down_to_the_depth(publish: Publish, folder: Path, depth: int) -> None:
    files, path = publish(folder)
    errors: list[str] = []
    found = {
        relative: [info.name for info in listing]
        for relative, listing in files.walk(path, depth, lambda name, _: errors.append(name))
    }
    tree = {"": ["a", "data", "主题 %x"], "a": ["b", "one"], "a/b": ["c"], "a/b/c": ["deep"]}
    assert found == dict(list(tree.items())[: depth + 1])
    assert errors == []


def test_walking_nothing_is_told(publish: Publish, folder: Path) -> None:
    files, path = publish(folder)
    errors: list[tuple[str, type]] = []
    found = files.walk(join(path, "no"), 1, lambda name, e: errors.append((name, type(e))))
    assert list(found) == []
    assert errors == [("", FileNotFoundError)]


@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, 0), (0, 1), (0, len(DATA)), (17, 1000), (len(DATA) - 5, 5), (len(DATA) - 5, 50)],
)
def test_a_range_is_read(publish: Publish, folder: Path, offset: int, length: int) -> None:
    files, path = publish(folder)
    target = join(path, "data")
    assert files.read(target, offset, length) == DATA[offset : offset + length]
    out = np.zeros(length, np.uint8)
    count = files.read_into(target, offset, out)
    assert out[:count].tobytes() == DATA[offset : offset + length]


@pytest.mark.parametrize("offset", [len(DATA), len(DATA) + 1, 1 << 40])
def test_past_the_end_there_is_nothing(publish: Publish, folder: Path, offset: int) -> None:
    files, path = publish(folder)
    target = join(path, "data")
    assert files.read(target, offset, 10) == b""
    assert files.read(target, offset, 1 << 40) == b""
    assert files.read_into(target, offset, np.zeros(10, np.uint8)) == 0
    assert _spans(files, target, [(5, 5), (offset, 10)])[0] == 1


@pytest.mark.threat("Lengths are checked before allocation")
def test_a_huge_length_takes_no_more_memory_than_the_file(publish: Publish, folder: Path) -> None:
    files, path = publish(folder)
    assert files.read(join(path, "data"), 1, 1 << 45) == DATA[1:]


@pytest.mark.parametrize(
    "spans",
    [
        [],
        [(0, len(DATA))],
        [(0, 10), (10, 20), (30, 1)],
        [(0, 300), (500, 300), (100_000, 1)],
        [(at, 7) for at in range(0, 290_000, 300)],
        [(at, 250) for at in range(5, 290_000, 70_000)],
        [(len(DATA) - 1, 1)],
    ],
)
def test_ranges_are_read_one_behind_the_other(
    publish: Publish, folder: Path, spans: list[tuple[int, int]]
) -> None:
    files, path = publish(folder)
    expected = b"".join(DATA[offset : offset + length] for offset, length in spans)
    assert _spans(files, join(path, "data"), spans) == (len(spans), expected)


@pytest.mark.parametrize("gap", [0, 100, 10_000, 100_000])
def test_the_first_range_that_ends_early_is_told(publish: Publish, folder: Path, gap: int) -> None:
    files, path = publish(folder)
    end = len(DATA)
    spans = [(end - 50 - gap, 40), (end - 10, 5), (end - 5, 6), (end + 1, 5)]
    count, out = _spans(files, join(path, "data"), spans)
    assert count == 2
    assert out[:45] == DATA[end - 50 - gap :][:40] + DATA[end - 10 : end - 5]


def test_sizes_and_presence(publish: Publish, folder: Path) -> None:
    files, path = publish(folder)
    assert files.size(join(path, "data")) == len(DATA)
    assert files.exists(join(path, "data"))
    assert files.exists(join(path, "a", "b"))
    assert not files.exists(join(path, "b"))


def test_a_missing_file_is_not_found(publish: Publish, folder: Path) -> None:
    files, path = publish(folder)
    missing = join(path, "a", "missing")
    with pytest.raises(FileNotFoundError):
        files.size(missing)
    with pytest.raises(FileNotFoundError):
        files.read(missing, 0, 1)
    with pytest.raises(FileNotFoundError):
        files.read_into(missing, 0, np.zeros(1, np.uint8))
    with pytest.raises(FileNotFoundError):
        _spans(files, missing, [(0, 1)])


def test_a_folder_cannot_be_read_as_a_file(publish: Publish, folder: Path) -> None:
    files, path = publish(folder)
    with pytest.raises((FileNotFoundError, RmqStoreError)):
        files.read(join(path, "a"), 0, 1)


def test_reading_goes_on_after_pickling_and_closing(publish: Publish, folder: Path) -> None:
    files, path = publish(folder)
    target = join(path, "data")
    assert files.read(target, 50, 5) == DATA[50:55]
    copy: Files = pickle.loads(pickle.dumps(files))
    assert copy.is_local == files.is_local
    assert copy.read(target, 7, 9) == DATA[7:16]
    assert files.read(target, 3, 5) == DATA[3:8]
    files.close()
    assert files.read(target, 99, 5) == DATA[99:104]
    assert copy.read(target, 0, 3) == DATA[:3]
    copy.close()


def test_many_more_files_than_handles(publish: Publish, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(300):
        (folder / str(number)).write_bytes(b"%d" % number)
    files, path = publish(folder)
    order = np.random.default_rng(1).permutation(np.repeat(np.arange(300), 3))
    for number in order.tolist():
        assert files.read(join(path, str(number)), 0, 10) == b"%d" % number


def test_ranges_of_several_files_are_read(publish: Publish, folder: Path) -> None:
    files, path = publish(folder)
    expected = {
        ("data", 5, 10): DATA[5:15],
        ("data", len(DATA) - 5, 50): DATA[-5:],
        ("a/b/c/deep", 1, 2): b"ee",
        ("a/one", 0, 9): b"1",
        ("data", 0, 7): DATA[:7],
    }
    ranges = [FileRange(join(path, name), *where) for name, *where in expected]
    assert list(files.read_many(ranges)) == list(expected.values())
    with pytest.raises(FileNotFoundError):
        files.read_many([*ranges, FileRange(join(path, "nothing"), 0, 1)])
