"""Disks that are full, and rounds in which they fill up."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine import PutResult, StoreWriter
from rmqstore_spark.reader import Store
from tests.fault.claims import Claims, Outcome
from tests.fault.messages import block, read_numbers
from tests.fault.rounds.driver import Scene
from tests.fault.rounds.life import SMALL, configured
from tests.fault.stores import with_topics
from tests.support.processes.serving import eventually

_STEP: Final = 64 << 10
_LEFT: Final = (8 << 10, 100 << 10, 400 << 10, 700 << 10)
"""Bytes left when it fills up: at first these, and then something between."""


@contextmanager
def small_disk(folder: Path, megabytes: int = 6, inodes: int = 10_000) -> Iterator[Path]:
    """A disk of its own, in memory."""
    path = folder / "disk"
    path.mkdir(parents=True)
    size = f"size={megabytes}m,nr_inodes={inodes}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def opened(disk: Path, *settings: str) -> StoreWriter:
    """A store on a disk, with its topics."""
    config = configured((*SMALL, "diskMaxUsedSpaceRatio=100", *settings))
    return with_topics(disk / "store", config)


def put(store: StoreWriter, claims: Claims, count: int) -> PutResult:
    """Put messages, and claim what was answered."""
    first = claims.next_number
    claims.begin("put", first, count)
    result = store.put(block(first, count))
    if result.ok:
        claims.done("put", first)
    return result


def fill(disk: Path, left: int) -> Path:
    """Fill a disk up with a file, but for some bytes."""
    ballast = disk / "ballast"
    size = 0
    with open(ballast, "wb") as file:
        while (free := os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize) > left:
            step = min(_STEP, free - left)
            with contextlib.suppress(OSError):  # the store takes room too
                os.posix_fallocate(file.fileno(), size, step)
                size += step
    return ballast


class FullDisk(Scene):
    """The disk fills up, at any fill level: so that each file is once the one that does not fit.

    Puts are refused with a status, reads keep working, and puts are accepted when there is room.
    """

    def begin(self) -> None:
        self._disk = self.ends.enter_context(small_disk(self.folder))
        self._claims = Claims()
        self.told = [self._claims]
        self._store = opened(self._disk)
        self.ends.callback(self._store.close)

    def round(self, number: int, seed: int) -> bool:
        """Put until the disk is full; read; make room, and put again."""
        store, claims = self._store, self._claims
        assert put(store, claims, 200).ok
        eventually(self._readable)  # queues of these have got room
        left = _LEFT[number] if number < len(_LEFT) else self.drawn.randint(_LEFT[0], _LEFT[-1])
        self.done.append(f"{left} bytes left")
        ballast = fill(self._disk, left)
        while (result := put(store, claims, 200)).ok:
            pass
        assert result.status in (
            PutStatus.CREATE_MAPEDFILE_FAILED,
            PutStatus.SERVICE_NOT_AVAILABLE,
        )
        assert "No space left" in result.remark or "full" in result.remark
        assert self._readable() > 0  # those whose queue has no room follow when it has
        ballast.unlink()
        eventually(lambda: put(store, claims, 10).ok)
        return True

    def _readable(self) -> int:
        """How many messages a reader finds in queues."""
        with Store.open(self._disk / "store") as reader:
            return sum(len(numbers) for numbers in read_numbers(reader).values())

    def finish(self) -> Outcome:
        self._store.close()
        return self._claims.compare(self._disk / "store")
