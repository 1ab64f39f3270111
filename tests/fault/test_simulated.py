"""What a simulated disk keeps and loses, and that a store which flushes too late is found out."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fault.child import MUTANTS
from tests.fault.rounds.driver import run
from tests.fault.rounds.table import simulated
from tests.fault.simulated.calls import Calls
from tests.fault.simulated.disk import FATES, SECTOR, Disk

pytestmark = pytest.mark.fault

Tree = dict[str, bytes | None]


def left(folder: Path, work: Callable[[Path], object], fate: str) -> list[Tree]:
    """What crashes of a fate leave, after some work in an empty folder."""
    root = folder / "root"
    root.mkdir(parents=True)
    disk = Disk(root)
    with Calls(str(root)) as calls:
        work(root)
    disk.do(calls.events)
    found = []
    for seed in range(60):
        crashed = folder / f"{fate} {seed}"
        disk.crash(random.Random(seed), fate, crashed)
        found.append(
            {
                str(path.relative_to(crashed)): path.read_bytes() if path.is_file() else None
                for path in crashed.rglob("*")
            }
        )
    return found


def write(path: Path, data: bytes, *, at: int = 0, flush: bool = False) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    os.pwrite(descriptor, data, at)
    if flush:
        os.fdatasync(descriptor)
    os.close(descriptor)


def flush_names(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


@pytest.mark.parametrize("fate", FATES)
def test_what_was_flushed_stays(tmp_path: Path, fate: str) -> None:
    def work(root: Path) -> None:
        write(root / "a", b"flushed", flush=True)
        flush_names(root)
        write(root / "b", b"more")

    assert all(tree["a"] == b"flushed" for tree in left(tmp_path, work, fate))


def test_a_kill_keeps_all(tmp_path: Path) -> None:
    def work(root: Path) -> None:
        (root / "below").mkdir()
        write(root / "below" / "a", b"x" * 2000)
        os.rename(root / "below" / "a", root / "b")

    wanted: Tree = {"below": None, "b": b"x" * 2000}
    assert all(tree == wanted for tree in left(tmp_path, work, "killed"))


def test_what_was_not_flushed_is_lost_in_any_part(tmp_path: Path) -> None:
    def work(root: Path) -> None:
        write(root / "a", b"0" * 4 * SECTOR, flush=True)
        flush_names(root)
        write(root / "a", b"1" * 2 * SECTOR, at=SECTOR)
        write(root / "b", b"")

    trees = left(tmp_path, work, "in part")
    sectors = {
        tuple(data[at] - 48 for at in range(0, len(data), SECTOR))
        for tree in trees
        if (data := tree["a"]) is not None
    }
    assert sectors == {(0, 0, 0, 0), (0, 1, 1, 0), (0, 0, 1, 0), (0, 1, 0, 0)}
    assert {"b" in tree for tree in trees} == {True, False}


def test_a_name_is_not_there_without_the_length_that_was_set_before(tmp_path: Path) -> None:
    def work(root: Path) -> None:
        descriptor = os.open(root, os.O_RDWR | os.O_TMPFILE)
        os.ftruncate(descriptor, 1000)
        os.pwrite(descriptor, b"data", 0)
        source = f"/proc/self/fd/{descriptor}"
        os.link(source, root / "a", src_dir_fd=descriptor, follow_symlinks=True)
        os.close(descriptor)

    for fate in FATES:
        trees = left(tmp_path / fate, work, fate)
        assert {tree.get("a") for tree in trees} <= {None, bytes(1000), b"data".ljust(1000, b"\0")}


def test_a_rename_is_done_or_not(tmp_path: Path) -> None:
    def work(root: Path) -> None:
        for name in ("from", "to"):
            (root / name).mkdir()
        write(root / "from" / "a", b"new", flush=True)
        write(root / "to" / "a", b"old", flush=True)
        for folder in (root, root / "from", root / "to"):
            flush_names(folder)
        os.replace(root / "from" / "a", root / "to" / "a")

    found = {(tree.get("from/a"), tree.get("to/a")) for tree in left(tmp_path, work, "in part")}
    assert found == {(b"new", b"old"), (None, b"new")}


@pytest.mark.parametrize(
    "mutant", ["acknowledge-before-flush", "skip-folder-fsync", "publish-before-flush"]
)
def test_a_store_that_flushes_too_late_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    change: Any = MUTANTS[mutant]
    module, name, function = change.args
    monkeypatch.setattr(f"{module}.{name}", function)
    parts = (range(first, first + 50) for first in range(0, 600, 50))
    assert any(run(simulated("SYNC_FLUSH"), tmp_path / mutant, part).is_wrong for part in parts)
