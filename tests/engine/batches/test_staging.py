"""What tasks stage: taken whole or not at all, kept within limits, removed when nobody wants it."""

from __future__ import annotations

import errno
import os
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rmqstore_spark.base.types import StageInfo
from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.engine.admission import Admission
from rmqstore_spark.engine.batches.stage import Stage
from rmqstore_spark.engine.batches.staged_records import PORTION_BYTES
from rmqstore_spark.engine.batches.staging import Staging, StagingLimits
from rmqstore_spark.errors import BlockError, RefusedError
from rmqstore_spark.files.systems.base import HandleCache
from rmqstore_spark.layout.record.block import Block, add_up, check_block, digest_text, index_hashes
from rmqstore_spark.layout.spans import U1
from tests.support.messages.blocks import encoded_traffic
from tests.support.messages.traffic import Traffic

FILES: HandleCache[int] = HandleCache(os.close, 4)
LIMITS = StagingLimits(1 << 30, 1 << 29, 0, 10_000)
MEMORY = {"in files": 0, "in both": 9_000, "in memory": 1 << 30}


def check(data: U1) -> Block:
    return check_block(
        data, max_body=1 << 22, store_host_v6=False, allowed_sys_flag=0x70D, digested=True
    )


def name(number: int) -> str:
    return f"{number:032x}"


def block(rows: int = 10, size: int = 100, seed: int = 1) -> U1:
    (data,) = encoded_traffic(Traffic(rows, {"a": 2, "b": 1}, size, seed=seed))
    return data


class Clock:
    now = 1_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module")
def admission(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admission]:
    with StoreWriter.open(tmp_path_factory.mktemp("open") / "store") as store:
        yield store._admission


@pytest.fixture
def make(tmp_path: Path, admission: Admission, clock: Clock) -> Callable[..., Staging]:
    def make_one(limits: StagingLimits = LIMITS) -> Staging:
        return Staging(tmp_path / "rmqstore" / "staging", admission, limits, clock)

    return make_one


@pytest.fixture(params=MEMORY)
def memory(request: pytest.FixtureRequest) -> int:
    """Bytes that stages may hold in memory: none, those of some of the blocks, or all."""
    return MEMORY[request.param]


@pytest.fixture
def staging(make: Callable[..., Staging], memory: int) -> Staging:
    return make(replace(LIMITS, memory_bytes=memory))


@pytest.fixture
def filed(make: Callable[..., Staging]) -> Staging:
    """Stages that are in files alone."""
    return make()


def staged(staging: Staging, number: int, *blocks: U1) -> StageInfo:
    stage = staging.begin(name(number))
    for data in blocks:
        stage.append(data)
    return stage.finish()


def files(staging: Staging, tmp_path: Path) -> list[str]:
    return sorted(p.name for p in (tmp_path / "rmqstore" / "staging").iterdir())


def read_back(stage: Stage) -> bytes:
    buffer = np.empty(max((p.size for p in stage.portions), default=0), np.uint8)
    parts = [(p.read_rows(FILES), p.read_records(buffer, FILES).tobytes()) for p in stage.portions]
    FILES.close()
    assert [int(rows.sizes.sum()) for rows, _ in parts] == [len(data) for _, data in parts]
    return b"".join(data for _, data in parts)


@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_what_was_staged_is_read_back_with_its_rows_and_routes(staging: Staging) -> None:
    blocks = [block(50, seed=n) for n in range(5)]
    info = staged(staging, 1, *blocks)
    whole = b"".join(data.tobytes() for data in blocks)
    written = [
        row
        for n in range(5)
        for batch in Traffic(50, {"a": 2, "b": 1}, 100, seed=n).batches()
        for row in batch.to_pylist()
    ]
    bodies = sum(len(row["body"]) for row in written)
    topics = Counter(row["topic"] for row in written)
    digest = digest_text(add_up((0, 0), check(np.frombuffer(whole, np.uint8))))
    assert info == StageInfo(name(1), 250, len(whole), bodies, zlib.crc32(whole), digest)
    assert staging.topics([info]) == topics
    (stage,) = staging.claim([info])
    assert read_back(stage) == whole
    (portion,) = stage.portions  # small blocks are put together
    rows = portion.read_rows(FILES)
    expected = check(np.frombuffer(whole, np.uint8))
    assert rows.sizes.tolist() == expected.sizes.tolist()
    assert rows.starts.tolist() == expected.starts.tolist()
    assert rows.tags_code.tolist() == expected.tags_code.tolist()
    assert rows.queued.all()
    assert [stage.routes[n] for n in rows.route_of] == [
        expected.routes[n] for n in expected.route_of
    ]


def test_large_blocks_are_cut_into_portions(staging: Staging) -> None:
    blocks = [block(400, 60_000, seed=n) for n in range(2)]
    info = staged(staging, 1, *blocks, block(1, 4 << 20))
    (stage,) = staging.claim([info])
    assert read_back(stage) == b"".join(d.tobytes() for d in [*blocks, block(1, 4 << 20)])
    assert len(stage.portions) >= 6
    assert all(p.size <= PORTION_BYTES for p in stage.portions)
    assert sum(p.count for p in stage.portions) == info.rows


def test_keys_are_hashed_on_receipt_and_read_back_by_portion(staging: Staging) -> None:
    """Those of each portion, with the numbers that its records have there."""
    blocks = [block(400, 9_000, seed=n) for n in range(4)]
    info = staged(staging, 1, *blocks)
    (stage,) = staging.claim([info])
    assert len(stage.portions) > 1
    buffer = np.empty(PORTION_BYTES, np.uint8)
    for portion in stage.portions:
        rows, keys = portion.read_rows(FILES), portion.read_keys(FILES)
        records = portion.read_records(buffer, FILES)
        hashes, key_rows = index_hashes(records, rows.starts, rows.sizes)
        assert len(hashes)
        assert keys.hashes.tolist() == hashes.tolist()
        assert keys.rows.tolist() == key_rows.tolist()
    FILES.close()


def test_without_an_index_no_key_is_kept(
    tmp_path: Path, admission: Admission, clock: Clock, memory: int
) -> None:
    limits = replace(LIMITS, memory_bytes=memory)
    staging = Staging(tmp_path / "staging", admission, limits, clock, indexed=False)
    (stage,) = staging.claim([staged(staging, 1, block())])
    assert not len(stage.portions[0].read_keys(FILES).hashes)
    FILES.close()


def test_a_block_with_a_bad_record_is_refused_whole(staging: Staging) -> None:
    stage = staging.begin(name(1))
    good = block(seed=1)
    assert stage.append(good) == 10
    bad = block(seed=2)
    bad[-1000] ^= 1  # in some body
    with pytest.raises(BlockError):
        stage.append(bad)
    assert stage.finish().checksum == zlib.crc32(good.tobytes())


@pytest.mark.parametrize(
    "stage_id", ["", "..", "../../etc", "A" * 32, "g" * 32, "0" * 31, "0" * 33, "/" + "0" * 31]
)
def test_what_is_no_stage_id_builds_no_path(
    staging: Staging, stage_id: str, tmp_path: Path
) -> None:
    with pytest.raises(RefusedError, match="not a stage id") as raised:
        staging.begin(stage_id)
    assert raised.value.status == "MESSAGE_ILLEGAL"
    with pytest.raises(RefusedError, match="misses the stage"):
        staging.claim([StageInfo(stage_id, 0, 0, 0, 0, "0" * 32)])
    staging.abort([stage_id])
    assert files(staging, tmp_path) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rmqstore"]


def test_a_commit_that_misses_a_stage_is_refused_and_takes_nothing(staging: Staging) -> None:
    info = staged(staging, 1, block())
    with pytest.raises(RefusedError, match=f"misses the stage {name(2)}.*never staged here"):
        staging.claim([info, StageInfo(name(2), 1, 100, 9, 0, "0" * 32)])
    assert len(staging.claim([info])) == 1


@pytest.mark.threat("What one client can do to another")
def test_a_stage_belongs_to_the_client_that_began_it(staging: Staging, tmp_path: Path) -> None:
    mine, free = staging.begin(name(1), identity="spark-a"), staging.begin(name(2))
    mine.append(block())
    free.append(block())
    infos = [mine.finish(), free.finish()]
    for touch in (
        lambda: staging.claim(infos, "spark-b"),
        lambda: staging.abort([name(2), name(1)], identity="spark-b"),
    ):
        with pytest.raises(RefusedError, match="belongs to the client 'spark-a'") as raised:
            touch()
        assert raised.value.status == "NO_PERMISSION"
        assert len(staging) == 2
    claimed = staging.claim(infos, "spark-a")
    with pytest.raises(RefusedError, match="belongs to the client 'spark-a'"):
        staging.abort([name(1)], identity="spark-b")  # nor while it is being committed
    staging.give_back(claimed)
    staging.finish(staging.claim(infos))  # as who is told from nobody
    assert files(staging, tmp_path) == []
    staging.begin(name(3), identity="spark-a")
    staging.abort([name(3)], identity="spark-a")
    staging.abort([name(3)], identity="spark-b")  # there is nothing any more
    assert files(staging, tmp_path) == []


def test_a_commit_of_an_unfinished_stage_is_refused(staging: Staging) -> None:
    stage = staging.begin(name(1))
    stage.append(block())
    with pytest.raises(RefusedError, match="not finished"):
        staging.claim([stage.info])


@pytest.mark.parametrize("field", ["rows", "bytes", "checksum"])
def test_a_commit_of_something_else_than_was_staged_is_refused(
    staging: Staging, field: str
) -> None:
    info = staged(staging, 1, block())
    other = replace(info, **{field: getattr(info, field) + 1})
    with pytest.raises(RefusedError, match="differs from what its task reported"):
        staging.claim([other])
    assert staging.claim([info])


def test_a_stage_named_twice_is_refused(staging: Staging) -> None:
    info = staged(staging, 1, block())
    with pytest.raises(RefusedError, match="twice"):
        staging.claim([info, info])


def test_an_abort_removes_stages_and_fences_them(staging: Staging, tmp_path: Path) -> None:
    info = staged(staging, 1, block())
    running = staging.begin(name(2))
    running.append(block())
    staging.abort([name(1), name(2), name(3)])
    assert files(staging, tmp_path) == []
    assert staging.staged_bytes == 0
    with pytest.raises(RefusedError, match="aborted"):
        running.append(block())
    with pytest.raises(RefusedError, match="aborted"):
        running.finish()
    with pytest.raises(RefusedError, match="it was aborted"):
        staging.claim([info])
    for number in (1, 2, 3):  # an attempt that comes late, too
        with pytest.raises(RefusedError, match="it was aborted"):
            staging.begin(name(number))


def test_an_abort_does_not_touch_what_is_being_committed(staging: Staging, tmp_path: Path) -> None:
    info = staged(staging, 1, block())
    (stage,) = staging.claim([info])
    staging.abort([name(1)])
    assert read_back(stage)
    staging.finish([stage])
    assert files(staging, tmp_path) == []
    assert staging.staged_bytes == 0


def test_beginning_a_stage_anew_does_not_touch_what_is_being_committed(staging: Staging) -> None:
    (stage,) = staging.claim([staged(staging, 1, block())])
    with pytest.raises(RefusedError, match="is already being committed"):
        staging.begin(name(1))
    assert read_back(stage)


def test_a_commit_that_failed_gives_its_stages_back(staging: Staging) -> None:
    infos = [staged(staging, n, block()) for n in (1, 2)]
    stages = staging.claim(infos)
    staging.abort([name(2)])
    staging.give_back(stages)
    assert len(staging) == 1
    assert [s.stage_id for s in staging.claim(infos[:1])] == [name(1)]
    with pytest.raises(RefusedError, match="aborted"):
        staging.claim(infos[1:])


def test_a_writer_that_went_away_can_begin_again(staging: Staging, tmp_path: Path) -> None:
    stage = staging.begin(name(1), owner="task 7")
    stage.append(block())
    with pytest.raises(RefusedError, match="already being written by task 7"):
        staging.begin(name(1))
    stage.discard()
    stage.discard()
    assert files(staging, tmp_path) == []
    assert staged(staging, 1, block()).rows == 10


def test_stages_of_writers_that_never_come_back_are_removed(staging: Staging, clock: Clock) -> None:
    info = staged(staging, 1, block())
    stage = staging.begin(name(2))
    clock.now += LIMITS.timeout_ms - 1
    stage.append(block())
    clock.now += 1
    assert staging.expire() == 1
    assert len(staging) == 1
    with pytest.raises(RefusedError, match="removed after stagingTimeout"):
        staging.claim([info])
    clock.now += LIMITS.timeout_ms
    assert staging.expire() == 1
    assert (len(staging), staging.staged_bytes) == (0, 0)


def test_a_clock_that_goes_back_expires_nothing_early(staging: Staging, clock: Clock) -> None:
    staged(staging, 1, block())
    clock.now -= 5_000_000
    assert staging.expire() == 0
    clock.now += LIMITS.timeout_ms - 1
    assert staging.expire() == 0
    clock.now += 1
    assert staging.expire() == 1


def test_a_stage_that_is_being_committed_does_not_expire(staging: Staging, clock: Clock) -> None:
    (stage,) = staging.claim([staged(staging, 1, block())])
    clock.now += 2 * LIMITS.timeout_ms
    assert staging.expire() == 0
    assert read_back(stage)


def test_leftovers_are_removed_at_open_and_nothing_else(
    make: Callable[..., Staging], tmp_path: Path
) -> None:
    folder = tmp_path / "rmqstore" / "staging"
    staged(make(), 1, block())
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (folder / name(2)).symlink_to(tmp_path / "precious")
    (folder / "note").touch()
    assert len(make()) == 0
    assert sorted(p.name for p in folder.iterdir()) == sorted([name(2), "note"])
    assert (tmp_path / "precious" / "file").exists()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_the_files_are_nobody_elses(filed: Staging, tmp_path: Path) -> None:
    staged(filed, 1, block())
    folder = tmp_path / "rmqstore" / "staging" / name(1)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {p.name: p.stat().st_mode & 0o777 for p in folder.iterdir()} == {
        "records": 0o600, "rows": 0o600, "keys": 0o600,
    }  # fmt: skip


def test_limits_in_total_and_per_stage(make: Callable[..., Staging], memory: int) -> None:
    data = block(100)
    rows = check(data)
    keys = len(index_hashes(data, rows.starts, rows.sizes)[0])
    size = len(data) + 16 * 100 + 8 * keys
    staging = make(StagingLimits(3 * size, 2 * size, memory, 1000))
    first = staging.begin(name(1))
    first.append(data)
    first.append(data)
    with pytest.raises(RefusedError, match="one task may stage") as raised:
        first.append(data)
    assert raised.value.status == "MESSAGE_ILLEGAL"
    second = staging.begin(name(2))
    second.append(data)
    assert staging.staged_bytes == 3 * size
    with pytest.raises(RefusedError, match="stagingMaxBytes") as raised:
        second.append(data)
    assert raised.value.status == "OS_PAGECACHE_BUSY"
    staging.abort([name(1)])
    assert second.append(data) == 200  # it waited, and there is room
    assert staging.staged_bytes == 2 * size


def test_no_more_stages_than_are_allowed(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqstore_spark.engine.batches.staging._MOST_STAGES", 2)
    info = staged(staging, 1, block())
    staged(staging, 2, block())
    with pytest.raises(RefusedError, match="2 stages, the maximum") as raised:
        staging.begin(name(3))
    assert raised.value.status == "OS_PAGECACHE_BUSY"
    staging.finish(staging.claim([info]))
    staging.begin(name(3))


@pytest.mark.fault
def test_a_full_disk_is_a_status_and_frees_what_the_stage_held(
    filed: Staging, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage = filed.begin(name(1))
    stage.append(block())

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(RefusedError, match="No space left") as raised:
        stage.append(block())
    assert raised.value.status == "SERVICE_NOT_AVAILABLE"
    monkeypatch.undo()
    assert (files(filed, tmp_path), filed.staged_bytes) == ([], 0)
    with pytest.raises(RefusedError, match="No space left"):
        stage.finish()


@pytest.mark.fault
@pytest.mark.parametrize("file", ["records", "rows"])
@pytest.mark.parametrize("harm", ["flip", "cut"])
def test_what_changed_on_the_disk_is_not_committed(
    filed: Staging, tmp_path: Path, file: str, harm: str
) -> None:
    (stage,) = filed.claim([staged(filed, 1, block())])
    path = tmp_path / "rmqstore" / "staging" / name(1) / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data if harm == "flip" else data[:-1])
    with pytest.raises(RefusedError, match="cannot be read back"):
        read_back(stage)


def test_many_tasks_stage_at_a_time(staging: Staging) -> None:
    infos: dict[int, StageInfo] = {}
    data = [block(200, seed=n) for n in range(8)]

    def work(number: int) -> None:
        infos[number] = staged(staging, number, *[data[number]] * 20)

    threads = [threading.Thread(target=work, args=[n]) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stages = staging.claim([infos[n] for n in range(8)])
    assert [read_back(s) for s in stages] == [data[n].tobytes() * 20 for n in range(8)]
    staging.finish(stages)
    assert staging.staged_bytes == 0


def test_closing_removes_all(staging: Staging, tmp_path: Path) -> None:
    staged(staging, 1, block())
    staging.begin(name(2)).append(block())
    staging.close()
    assert files(staging, tmp_path) == []
