"""A full disk refuses puts with a status, keeps reads working, and resumes: promise 6."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.base.types import CommitRequest, WriterId
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.reader import Store
from tests.fault.claims import Claims
from tests.fault.messages import block, read_numbers
from tests.fault.rounds.disk import fill, opened, put, small_disk
from tests.support.processes.serving import eventually

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root"),
]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path) as path:
        yield path


def test_no_room_but_for_the_index(disk: Path) -> None:
    """Log and queues have theirs: files made before the disk was full, with pages of their own."""
    claims = Claims()
    with opened(disk) as store:
        assert put(store, claims, 200).ok
        store.flush()
        ballast = fill(disk, 0)
        while (result := put(store, claims, 10)).ok:
            pass
        assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
        assert f"{disk}/store/index/" in result.remark
        assert "No space left" in result.remark
        in_log = sum(operation.count for operation in claims.operations if operation.done)
        with Store.open(disk / "store") as reader:
            # The last of them may wait behind the one whose keys have no room.
            assert sum(map(len, read_numbers(reader).values())) in (in_log, in_log - 10)
        assert in_log > 200
        ballast.unlink()
        eventually(lambda: put(store, claims, 10).ok)
    claims.check(disk / "store")


def test_a_full_disk_refuses_to_stage_and_to_commit(disk: Path) -> None:
    claims = Claims()
    with opened(disk) as store:
        assert put(store, claims, 200).ok
        ballast = fill(disk, 300 << 10)
        first = claims.next_number
        claims.begin("commit", first, 2000)

        def commit() -> str:
            """Commit; why that was refused, if it was."""
            try:
                stage = store.batches.begin_stage(uuid.uuid4().hex)
                stage.append(block(first, 2000))
                writer = WriterId.of_stream("full-disk", 1)
                store.batches.commit(CommitRequest(writer, (stage.finish(),)))
            except RefusedError as error:
                return str(error)
            claims.done("commit", first)
            return ""

        refusal = commit()
        assert "No space left" in refusal or "full" in refusal
        ballast.unlink()
        eventually(lambda: not commit())  # queues and index may have to be updated first
    claims.check(disk / "store")
    assert claims.operations[-1].done
