from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest

from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.files.systems.base import FileRange, translated
from rmqstore_spark.files.systems.local import LocalFiles

ROOT = Path(__file__).resolve().parents[3]
DESCRIPTORS = Path("/proc/self/fd")

needs_proc = pytest.mark.skipif(not DESCRIPTORS.is_dir(), reason="needs Linux's /proc")


def open_descriptors(below: Path) -> int:
    links = (os.readlink(link) for link in DESCRIPTORS.iterdir() if link.is_symlink())
    return sum(link.startswith(str(below)) for link in links)


@pytest.fixture
def many(tmp_path: Path) -> Path:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(50):
        (folder / str(number)).write_bytes(b"%02d" % number)
    return folder


@pytest.fixture
def limit() -> Iterator[Callable[[int], None]]:
    """Sets how many files this process may have open, until the test ends."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda files: resource.setrlimit(resource.RLIMIT_NOFILE, (files, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@needs_proc
def test_descriptors_stay_open_up_to_the_limit_and_no_further(many: Path) -> None:
    files = LocalFiles(open_files=7)
    for number in [*range(50), *range(50)]:
        assert files.read(str(many / str(number)), 0, 2) == b"%02d" % number
        assert open_descriptors(many) <= 7
    assert open_descriptors(many) == 7
    files.list(str(many))
    assert open_descriptors(many) == 7
    files.close()
    assert open_descriptors(many) == 0


@needs_proc
def test_all_share_a_part_of_what_the_process_may_have_open(
    many: Path, limit: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmqstore_spark.files.systems.local._sharing", WeakSet())
    for number in range(50, 300):
        (many / str(number)).write_bytes(b"%03d" % number)
    wanted = [FileRange(str(many / str(number)), 0, 2) for number in range(300)]
    limit(150 * 16)
    files = LocalFiles()
    files.read_many(wanted[:299])
    assert open_descriptors(many) == 299
    another = LocalFiles()
    for each in (another, files):
        each.read_many(wanted)
    assert open_descriptors(many) == 2 * 150
    limit(1024)
    for each in (another, files):
        each.read_many(wanted[:200])
    assert open_descriptors(many) == 2 * 128
    another.close()
    files.close()


def test_many_ranges_are_read_as_one_by_one(many: Path, local: LocalFiles) -> None:
    (many / "long").write_bytes(bytes(range(256)) * 8192)
    paths = [str(many / name) for name in ("7", "long", "long", "8")]
    wanted = [
        FileRange(*each)
        for each in zip(paths, (0, 100, 1 << 20, 1), (2, 2 << 20, 9, 5), strict=True)
    ]
    assert local.read_many(wanted) == [local.read(*each) for each in wanted]
    assert [len(data) for data in local.read_many(wanted)] == [2, (2 << 20) - 100, 9, 1]
    with pytest.raises(FileNotFoundError, match="none"):
        local.read_many([wanted[0], FileRange(str(many / "none"), 0, 1)])


@needs_proc
@pytest.mark.parametrize("sizes", [True, False])
def test_a_removed_file_is_let_go_when_its_folder_is_listed(
    many: Path, local: LocalFiles, *, sizes: bool
) -> None:
    (many / "below").mkdir()
    paths = [many / name for name in ("1", "2", "below/1")]
    for path in paths:
        path.write_bytes(b"x")
        local.read(str(path), 0, 1)
    for path in paths:
        path.unlink()
    assert local.read(str(paths[0]), 0, 1) == b"x"
    local.list(f"{many}/", sizes=sizes)
    assert open_descriptors(many) == 1
    with pytest.raises(FileNotFoundError):
        local.read(str(paths[0]), 0, 1)
    assert local.read(str(paths[2]), 0, 1) == b"x"
    local.list(str(many / "below"), sizes=sizes)
    assert open_descriptors(many) == 0


@needs_proc
def test_files_are_let_go_with_their_folder_and_behind_a_dangling_link(
    many: Path, local: LocalFiles, tmp_path: Path
) -> None:
    (tmp_path / "target").write_bytes(b"x")
    (many / "link").symlink_to(tmp_path / "target")
    local.read(str(many / "link"), 0, 1)
    (tmp_path / "target").unlink()
    assert open_descriptors(tmp_path) == 1
    local.list(str(many))
    assert open_descriptors(tmp_path) == 0
    local.read(str(many / "1"), 0, 1)
    shutil.rmtree(many)
    with pytest.raises(FileNotFoundError):
        local.list(f"{many}/")
    assert open_descriptors(tmp_path) == 0


@needs_proc
def test_descriptors_are_closed_with_the_object(many: Path) -> None:
    files = LocalFiles()
    files.read(str(many / "1"), 0, 1)
    assert open_descriptors(many) == 1
    del files
    assert open_descriptors(many) == 0


@pytest.mark.threat("Files are opened for reading only and are not mapped")
@needs_proc
def test_a_refused_file_leaves_no_descriptor_behind(tmp_path: Path, local: LocalFiles) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(RmqStoreError, match=name):
            local.read(str(tmp_path / name), 0, 1)
    assert open_descriptors(tmp_path) == 0


def test_a_limit_on_open_files_is_lived_with(many: Path, limit: Callable[[int], None]) -> None:
    files = LocalFiles()
    free = os.dup(0)  # the lowest descriptor that is free now
    os.close(free)
    limit(free + 5)
    try:
        for number in range(50):
            assert files.read(str(many / str(number)), 0, 2) == b"%02d" % number
    finally:
        files.close()


@pytest.mark.threat("Loops end")
def test_links_that_lead_nowhere_or_in_circles(tmp_path: Path, local: LocalFiles) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    (tmp_path / "up").symlink_to(tmp_path)
    for sizes in (True, False):
        listed = {info.name: info for info in local.list(str(tmp_path), sizes=sizes)}
        assert set(listed) == {"circle", "nowhere", "up"}
        assert all(info.is_link for info in listed.values())
        assert [info.name for info in listed.values() if info.is_dir] == ["up"]
    assert [info.size for info in local.list(str(tmp_path))] == [0, 0, 0]
    for name in ("circle", "nowhere"):
        with pytest.raises(FileNotFoundError):
            local.read(str(tmp_path / name), 0, 1)
        with pytest.raises(FileNotFoundError):
            local.size(str(tmp_path / name))


@pytest.mark.threat("Loops end")
def test_a_circle_of_folders_is_walked_no_deeper_than_asked(
    tmp_path: Path, local: LocalFiles
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    walked = [name for name, _ in local.walk(str(tmp_path), 4, lambda *_: None)]
    assert walked == ["", "a", "a/up", "a/up/a", "a/up/a/up"]


def test_times_are_milliseconds(tmp_path: Path, local: LocalFiles) -> None:
    (tmp_path / "file").write_bytes(b"")
    os.utime(tmp_path / "file", ns=(0, 1_700_000_000_123_456_789))
    assert local.list(str(tmp_path))[0].mtime_ms == 1_700_000_000_123


def test_a_name_that_is_too_long_is_missing(tmp_path: Path, local: LocalFiles) -> None:
    with pytest.raises(FileNotFoundError):
        local.read(str(tmp_path / ("x" * 5000)), 0, 1)
    with pytest.raises(FileNotFoundError):
        local.list(str(tmp_path / ("x" * 5000)))


@pytest.mark.threat("Files are opened for reading only and are not mapped")
@pytest.mark.parametrize(
    ("number", "text"),
    [(errno.EIO, "disk"), (errno.EMFILE, "ulimit"), (errno.ESTALE, "mount")],
)
def test_failures_name_the_path_and_a_remedy(number: int, text: str) -> None:
    error = translated(OSError(number, os.strerror(number)), "/store/x")
    assert type(error) is RmqStoreError
    assert "/store/x" in str(error)
    assert text in str(error)


def test_a_failing_disk_is_told(
    tmp_path: Path, local: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"data")

    def fail(*_args: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    local.read(str(tmp_path / "file"), 0, 1)
    monkeypatch.setattr(os, "pread", fail)
    monkeypatch.setattr(os, "preadv", fail)
    for read in (
        lambda: local.read(str(tmp_path / "file"), 0, 4),
        lambda: local.read_into(str(tmp_path / "file"), 0, np.zeros(4, np.uint8)),
    ):
        with pytest.raises(RmqStoreError, match="Input/output error"):
            read()


# ---- permissions --------------------------------------------------------------------------------

AS_NOBODY = """
import json, os, sys
from rmqstore_spark.files.directory import StoreDirectory
from rmqstore_spark.files.systems.local import LocalFiles
from rmqstore_spark.files.segments import Segments
from rmqstore_spark.files.topology import Topology
import encodings.idna, zipfile  # whatever is loaded late could not be after the change of user

store = sys.argv[1]
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
files = LocalFiles()
tries = {
    "open": lambda: StoreDirectory.open(store),
    "segments": lambda: Segments.load(files, [store + "/commitlog"]),
    "read": lambda: Segments.load(files, [store + "/commitlog"]).read(0, 1),
    "queues": lambda: Topology.load(files, store + "/consumequeue"),
    "list": lambda: files.list(store),
    "names": lambda: files.list(store, sizes=False),
    "size": lambda: files.size(store + "/commitlog/" + "0" * 20),
    "exists": lambda: files.exists(store + "/commitlog/" + "0" * 20),
}
found = {}
for name, action in tries.items():
    try:
        found[name] = ["done", str(action())]
    except Exception as error:
        found[name] = [type(error).__name__, str(error)]
print(json.dumps(found))
"""


@pytest.fixture
def store() -> Iterator[Path]:
    """A small store in a folder that every user may enter, which pytest's own is not."""
    parent = Path(tempfile.mkdtemp())
    parent.chmod(0o755)
    store = parent / "store"
    for folder in ("commitlog", "consumequeue/T/0", "consumequeue/lost+found"):
        (store / folder).mkdir(parents=True)
    (store / "commitlog" / ("0" * 20)).write_bytes(b"log")
    (store / "consumequeue/T/0" / ("0" * 20)).write_bytes(b"queue")
    yield store
    for path in [store, *store.rglob("*")]:
        path.chmod(0o755)
    shutil.rmtree(parent)


def as_nobody(store: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(store)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_with_permission_all_is_read(store: Path) -> None:
    found = as_nobody(store)
    assert {name: result[0] for name, result in found.items()} == dict.fromkeys(found, "done")


@pytest.mark.parametrize(
    ("where", "mode", "denied"),
    [
        ("", 0o000, ["open", "segments", "read", "queues", "list", "names", "size"]),
        ("commitlog", 0o000, ["open", "segments", "read", "size"]),
        ("commitlog", 0o444, ["segments", "read", "size"]),
        ("commitlog/" + "0" * 20, 0o000, ["read"]),
        ("consumequeue", 0o000, ["queues"]),
        ("consumequeue/T", 0o000, ["queues"]),
        ("consumequeue/lost+found", 0o000, []),
    ],
)
def test_missing_permission_is_told_with_the_path(
    store: Path, where: str, mode: int, denied: list[str]
) -> None:
    (store / where).chmod(mode)
    found = as_nobody(store)
    assert [name for name in found if found[name][0] == "StoreAccessError"] == denied
    assert {result[0] for name, result in found.items() if name not in denied} <= {"done"}
    for name in denied:
        assert str(store / where) in found[name][1]
        assert "permission to read" in found[name][1]
        assert "user id" in found[name][1]
