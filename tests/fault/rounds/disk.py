"""Rounds of full disks; see `writer`."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.status import PutResult
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.reader.store import Store
from rmqstore_spark.status import PutStatus
from tests.fault.claims import Claims
from tests.fault.messages import TOPICS, block, read_numbers
from tests.fault.rounds.life import SMALL
from tests.fault.rounds.writer import Tally
from tests.support.processes.serving import eventually

__all__ = ["fill", "full_disk", "full_disks", "opened", "put", "small_disk"]

_MEGABYTES: Final = 6
_STEP: Final = 64 << 10
_LEAST_LEFT: Final = 8 << 10
_MOST_LEFT: Final = 700 << 10


@contextmanager
def small_disk(folder: Path, megabytes: int = _MEGABYTES) -> Iterator[Path]:
    """A disk of its own, in memory."""
    path = folder / "disk"
    path.mkdir(parents=True)
    size = f"size={megabytes}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def opened(disk: Path, *settings: str) -> StoreWriter:
    """A store on a disk, with its topics."""
    pairs = (*SMALL, "diskMaxUsedSpaceRatio=100", *settings)
    config = StoreConfig().with_overrides(dict(pair.split("=", 1) for pair in pairs))
    store = StoreWriter.open(disk / "store", config)
    for topic in TOPICS:
        store.create_topic(topic, write_queue_nums=4)
    return store


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


def full_disk(folder: Path, left: int) -> Tally:
    """Put until the disk is full; read; make room, and put again."""
    claims = Claims()
    with small_disk(folder) as disk:
        with opened(disk) as store:
            assert put(store, claims, 200).ok
            ballast = fill(disk, left)
            while (result := put(store, claims, 200)).ok:
                pass
            assert result.status in (
                PutStatus.CREATE_MAPEDFILE_FAILED,
                PutStatus.SERVICE_NOT_AVAILABLE,
            )
            assert "No space left" in result.remark or "full" in result.remark
            with Store.open(disk / "store") as reader:
                read = sum(len(numbers) for numbers in read_numbers(reader).values())
            assert read > 0  # those whose queue has no room follow when it has
            ballast.unlink()
            eventually(lambda: put(store, claims, 10).ok)
        tally = Tally(1, 1, claims.acknowledged)
        tally.add(claims.compare(disk / "store"))
    return tally


def full_disks(folder: Path, rounds: int) -> Tally:
    """Full disks, with enough space at first that another file is the one that does not fit."""
    tally, drawn = Tally(), random.Random(rounds)
    for number in range(rounds):
        tally += full_disk(folder / str(number), drawn.randint(_LEAST_LEFT, _MOST_LEFT))
    return tally
