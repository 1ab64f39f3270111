from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from rmqstore_spark.errors import CorruptStoreError, RmqStoreError, StoreAccessError
from rmqstore_spark.files.segments import Segments
from rmqstore_spark.files.systems.base import join
from rmqstore_spark.files.systems.open import open_files
from rmqstore_spark.files.systems.remote import FsspecFiles
from rmqstore_spark.files.topology import Topology
from tests.files.conftest import Publish
from tests.files.ranges import HandleFileSystem, RangeFileSystem

ROOT = Path(__file__).resolve().parents[3]
DATA = np.random.default_rng(11).integers(0, 256, 20 << 20, np.uint8).tobytes()
NAME = "0" * 20

only_ranges = pytest.mark.parametrize("kind", ["ranges"])


def spaced(record: int, gap: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    offsets = np.arange(0, len(DATA) - record, record + gap)
    return offsets, np.full(len(offsets), record)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / NAME).write_bytes(DATA)
    return folder


# ---- how much is asked for ----------------------------------------------------------------------


@only_ranges
@pytest.mark.parametrize(
    ("record", "gap", "most"),
    [
        (300, 0, 4),  # the whole file is three requests of 8 MiB at most
        (300, 1000, 4),
        (300, 20_000, 4),
        (5000, 60_000, 4),
        (5000, 70_000, 280),  # too far apart: one for each
    ],
)
def test_neighbours_share_a_request(
    publish: Publish, log: Path, record: int, gap: int, most: int
) -> None:
    files, path = publish(log)
    segments = Segments.load(files, [path])
    offsets, lengths = spaced(record, gap)
    RangeFileSystem.requests.clear()
    buffer, positions = segments.read_entries(offsets, lengths)
    for offset, position in zip(offsets.tolist(), positions.tolist(), strict=True):
        assert buffer[position : position + record].tobytes() == DATA[offset : offset + record]
    requests = RangeFileSystem.requests
    assert len(requests) <= most
    assert max(end - start for _, start, end in requests) <= (8 << 20) + record
    assert len(buffer) <= 3 * len(offsets) * record + (8 << 20)


@only_ranges
def test_a_tree_is_listed_in_one_request(publish: Publish, tmp_path: Path) -> None:
    for queue_id in range(200):
        folder = tmp_path / "consumequeue" / "Topic" / str(queue_id)
        folder.mkdir(parents=True)
        (folder / NAME).write_bytes(b"q" * 40)
    files, path = publish(tmp_path / "consumequeue")
    topology = Topology.load(files, path)
    assert topology.queues == {"Topic": tuple(range(200))}
    assert RangeFileSystem.listings == [path]
    listing = topology.listings["Topic", 7]
    assert [(info.name, info.size) for info in listing] == [(NAME, 40)]


@pytest.mark.parametrize("kind", ["zip"])
def test_an_archive_is_read_forward_without_starting_again(
    publish: Publish, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, path = publish(log)
    segments = Segments.load(files, [path])
    opened = []
    open_member = zipfile.ZipFile.open

    def counted(self: zipfile.ZipFile, *args: Any, **kwargs: Any) -> Any:
        opened.append(args)
        return open_member(self, *args, **kwargs)

    monkeypatch.setattr(zipfile.ZipFile, "open", counted)
    offsets, lengths = spaced(1000, 50_000)
    for first in range(0, len(offsets), 20):
        part = slice(first, first + 20)
        buffer, positions = segments.read_entries(offsets[part], lengths[part])
        at = int(positions[0])
        assert buffer[at : at + 1000].tobytes() == DATA[offsets[first] : offsets[first] + 1000]
    assert len(opened) == 1


# ---- what goes wrong ----------------------------------------------------------------------------


class _Deaf(RangeFileSystem):
    """Sends whole files whatever is asked for, as a plain web server can."""

    async def _cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        return await super()._cat_file(path, 0, None)


class _Broken(RangeFileSystem):
    async def _cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        raise LookupError("session token expired")


class _Closed(RangeFileSystem):
    async def _ls(self, path: str, detail: bool = True, **_kwargs: Any) -> list[Any]:
        raise PermissionError("Access Denied")


@only_ranges
@pytest.mark.parametrize(
    ("fs", "text"), [(_Deaf, "range requests"), (_Broken, "session token expired")]
)
def test_a_server_that_gives_something_else_is_no_data(
    publish: Publish, log: Path, fs: type[RangeFileSystem], text: str
) -> None:
    _, path = publish(log)
    files = FsspecFiles(fs())
    for read in (
        lambda: files.read(join(path, NAME), 5, 10),
        lambda: files.read_into(join(path, NAME), 5, np.zeros(10, np.uint8)),
        lambda: files.read_spans(
            join(path, NAME), np.array([5]), np.array([10]), np.zeros(10, np.uint8)
        ),
    ):
        with pytest.raises(RmqStoreError, match=text) as caught:
            read()
        assert path in str(caught.value)


@only_ranges
def test_a_refusal_is_a_missing_permission(publish: Publish, log: Path) -> None:
    _, path = publish(log)
    with pytest.raises(StoreAccessError, match=f"{path} .*credentials.*Access Denied"):
        FsspecFiles(_Closed()).list(path)


@pytest.mark.parametrize("at", [100, 10_000, 5 << 20])
def test_a_damaged_archive_is_damage(tmp_path: Path, at: int) -> None:
    archive = tmp_path / "store.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr(f"log/{NAME}", DATA)
    data = bytearray(archive.read_bytes())
    data[at : at + 64] = bytes(byte ^ 0x5A for byte in data[at : at + 64])
    archive.write_bytes(data)
    files, path = open_files(f"zip://log::{archive}")
    segments = Segments.load(files, [path])
    with pytest.raises(CorruptStoreError, match="archive is damaged") as caught:
        segments.read_range(0, len(DATA))
    assert caught.value.file == f"log/{NAME}"
    files.close()


def test_a_file_that_changed_is_read_anew_once_listed() -> None:
    fs = MemoryFileSystem()
    fs.pipe("/changing/file", b"old")
    files, path = open_files("memory://changing")
    assert files.read("/changing/file", 0, 9) == b"old"
    fs.pipe("/changing/file", b"newer")
    assert [info.size for info in files.list(path)] == [5]
    assert files.read("/changing/file", 0, 9) == b"newer"
    fs.rm("/changing", recursive=True)


def test_a_file_that_grows_under_its_handle_is_read_as_it_is_now() -> None:
    HandleFileSystem.contents["log"] = bytearray(b"record" + bytes(94))
    files = FsspecFiles(HandleFileSystem())
    assert files.read("log", 0, 6) == b"record"
    HandleFileSystem.contents["log"][6:12] = b"second"
    assert files.read("log", 6, 6) == b"second"
    files.close()


@only_ranges
def test_what_was_listed_is_listed_anew(publish: Publish, log: Path) -> None:
    files, path = publish(log)
    assert len(files.list(path)) == 1
    RangeFileSystem.objects[f"{path}/{1 << 30:020}"] = b"new"
    assert len(files.list(path)) == 2
    assert len(dict(files.walk(path, 0, lambda *_: None))[""]) == 2


# ---- processes ----------------------------------------------------------------------------------

FORKING = """
import os, sys
from rmqstore_spark.files.systems.open import open_files

files, path = open_files(sys.argv[1])
name = (path + "/" if path else "") + "0" * 20
whole = files.read(name, 0, 1 << 30)
assert len(whole) == 2_000_000, len(whole)

def check(order):
    for at in order:
        assert files.read(name, at, 100) == whole[at : at + 100], at

check([1_000_000])
child = os.fork()
if child == 0:
    try:
        check([*range(0, 1_900_000, 9_973), 5])
    except BaseException:
        os._exit(1)
    os._exit(0)
check([*range(1_900_000, 0, -9_973)])
assert os.waitpid(child, 0)[1] == 0
check([3])
"""


@pytest.mark.parametrize("kind", ["local", "zip", "stored", "cached"])
def test_a_forked_child_reads_on_its_own(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / NAME).write_bytes(DATA[:2_000_000])
    url = str(folder)
    if kind in ("zip", "stored"):
        method = zipfile.ZIP_DEFLATED if kind == "zip" else zipfile.ZIP_STORED
        with zipfile.ZipFile(tmp_path / "log.zip", "w", method) as out:
            out.write(folder / NAME, f"log/{NAME}")
        url = f"zip://log::{tmp_path}/log.zip"
    elif kind == "cached":
        url = f"simplecache::file://{folder}"
    done = subprocess.run(
        [sys.executable, "-c", FORKING, url],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
