"""A full disk refuses puts with a status, keeps reads working, and resumes: promise 6."""

from __future__ import annotations

import contextlib
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqstore_spark.errors import RefusedError
from rmqstore_spark.reader.store import Store
from rmqstore_spark.writer.commit import CommitRequest
from rmqstore_spark.writer.config import StoreConfig
from rmqstore_spark.writer.ledger import WriterId
from rmqstore_spark.writer.status import PutStatus
from rmqstore_spark.writer.store import StoreWriter
from tests.fault.claims import Claims
from tests.fault.messages import TOPICS, block, read_numbers

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root"),
]

_SETTINGS = {
    "mappedFileSizeCommitLog": "262144",
    "mappedFileSizeConsumeQueue": "4000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "3000",
    "diskMaxUsedSpaceRatio": "100",
}
_STEP = 64 << 10


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 6 MB."""
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(path)], check=True)
    yield path
    subprocess.run(["umount", str(path)], check=True)


def _fill(disk: Path, left: int) -> Path:
    ballast = disk / "ballast"
    size = 0
    with open(ballast, "wb") as file:
        while (free := os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize) > left:
            step = min(_STEP, free - left)
            with contextlib.suppress(OSError):  # the store takes room too
                os.posix_fallocate(file.fileno(), size, step)
                size += step
    return ballast


@pytest.mark.parametrize("left", [8 << 10, 100 << 10, 400 << 10, 700 << 10])
def test_puts_are_refused_reads_go_on_and_puts_resume(disk: Path, left: int) -> None:
    claims = Claims()
    with StoreWriter.open(disk / "store", StoreConfig().with_overrides(_SETTINGS)) as store:
        for topic in TOPICS:
            store.create_topic(topic, write_queue_nums=4)
        assert store.put(block(0, 200)).ok
        claims.begin("put", 0, 200)
        claims.done("put", 0)
        ballast = _fill(disk, left)
        refusal = ""
        while not refusal:
            first = claims.next_number
            claims.begin("put", first, 200)
            result = store.put(block(first, 200))
            if result.ok:
                claims.done("put", first)
            else:
                assert result.status in (
                    PutStatus.CREATE_MAPEDFILE_FAILED, PutStatus.SERVICE_NOT_AVAILABLE,
                )  # fmt: skip
                refusal = result.remark
        assert "No space left" in refusal or "full" in refusal
        with Store.open(disk / "store") as reader:
            read = sum(len(numbers) for numbers in read_numbers(reader).values())
        assert read > 0  # those whose queue has no room follow when it has
        ballast.unlink()
        resumed = False
        for _ in range(200):
            first = claims.next_number
            claims.begin("put", first, 10)
            result = store.put(block(first, 10))
            if result.ok:
                claims.done("put", first)
                resumed = True
                break
        assert resumed
    claims.check(disk / "store")


def test_a_full_disk_refuses_to_stage_and_to_commit(disk: Path) -> None:
    claims = Claims()
    with StoreWriter.open(disk / "store", StoreConfig().with_overrides(_SETTINGS)) as store:
        for topic in TOPICS:
            store.create_topic(topic, write_queue_nums=4)
        assert store.put(block(0, 200)).ok
        claims.begin("put", 0, 200)
        claims.done("put", 0)
        ballast = _fill(disk, 300 << 10)
        first = claims.next_number
        claims.begin("commit", first, 2000)
        refusal = ""
        for _ in range(2):
            try:
                stage = store.begin_stage(uuid.uuid4().hex)
                stage.append(block(first, 2000))
                writer = WriterId.of_stream("full-disk", 1)
                store.commit(CommitRequest(writer, (stage.finish(),)))
                claims.done("commit", first)
            except RefusedError as error:
                refusal = str(error)
                ballast.unlink(missing_ok=True)
        assert "No space left" in refusal or "full" in refusal
    claims.check(disk / "store")
    assert claims.operations[-1].done
