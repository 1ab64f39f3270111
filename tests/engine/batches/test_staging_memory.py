"""Stages in memory: within their limit, the rest in files, and given back when they are gone."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqstore_spark.base.types import CommitRequest, StageInfo, WriterId
from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.engine.batches import held, spilled, staged_records
from rmqstore_spark.engine.batches.held import HeldPortion
from rmqstore_spark.engine.batches.stage import Stage
from rmqstore_spark.engine.batches.staged_records import KEY_DTYPE, ROW_DTYPE
from rmqstore_spark.engine.batches.staging import Staging, StagingLimits
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.files.systems.base import HandleCache
from rmqstore_spark.reader import Store
from rmqstore_spark.verify import verify
from tests.support.messages.batches import (
    QUERY,
    bodies,
    commit_batch,
    expected,
    rows_block,
    scanned,
    shown,
    small_segments,
    stage_batch,
    stage_id,
)
from tests.support.messages.traffic import FIRST_TIME
from tests.support.stores.storing import until

STAGES = 4
BLOCK = rows_block(bodies("a"))


def log_bytes(path: Path, begin: int, end: int) -> bytes:
    """A range of the log, whose segments have 8 KiB."""
    files = sorted((path / "commitlog").glob("0*"))
    return b"".join(file.read_bytes() for file in files)[begin:end]


def in_memory(stage: Stage) -> list[bool]:
    """Whether each portion of a stage is in memory."""
    return [isinstance(portion, HeldPortion) for portion in stage.portions]


# ---- the boundary --------------------------------------------------------------------------------


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make portions so small that the blocks of a test fill several."""
    monkeypatch.setattr(held, "_TOGETHER_BYTES", 3_000)
    monkeypatch.setattr(spilled, "PORTION_BYTES", 5_000)
    monkeypatch.setattr(staged_records, "PORTION_BYTES", 5_000)


BLOCKS = st.lists(
    st.tuples(st.integers(0, STAGES - 1), st.integers(1, 40), st.booleans()),
    min_size=1,
    max_size=20,
)


@pytest.mark.usefixtures("small_portions")
def test_any_mix_of_memory_and_files_commits_the_same_bytes(tmp_path: Path) -> None:
    """As stages that are in files alone, whichever blocks of which stages find memory."""
    paths = {limit: tmp_path / str(limit) for limit in (0, 2_000, 9_000, 30_000, 1 << 30)}
    with ExitStack() as opened:
        stores = {
            limit: opened.enter_context(
                StoreWriter.open(
                    path, small_segments(stagingMemoryBytes=str(limit)), clock=lambda: FIRST_TIME
                )
            )
            for limit, path in paths.items()
        }
        numbers = iter(range(10_000))

        @settings(max_examples=20, deadline=None)
        @given(BLOCKS)
        def commit_in_all(blocks: list[tuple[int, int, bool]]) -> None:
            number = next(numbers)
            written = {}
            for limit, store in stores.items():
                begin = int(store.stats()["commitLogMaxOffset"])
                commit_blocks(store, number, blocks)
                end = int(store.stats()["commitLogMaxOffset"])
                written[limit] = begin, end, log_bytes(paths[limit], begin, end)
                assert store.stats()["stagedMemoryBytes"] == store.stats()["stagedBytes"] == 0
            assert all(found == written[0] for found in written.values())

        commit_in_all()
    for path in paths.values():
        with Store.open(path) as store:
            assert verify(store).errors == 0
        assert sorted(shown(path).elements()) == sorted(scanned(path))


def commit_blocks(store: StoreWriter, number: int, blocks: list[tuple[int, int, bool]]) -> None:
    """Stage blocks and commit them; a stage is aborted first where its block says so."""
    stages: dict[int, tuple[str, Stage]] = {}
    for at, (wanted, rows, is_anew) in enumerate(blocks):
        if is_anew and wanted in stages:
            store.batches.abort([stages.pop(wanted)[0]])
        if wanted not in stages:
            name = stage_id(f"{number}/{at}")
            stages[wanted] = name, store.batches.begin_stage(name)
        stage, block = stages[wanted][1], rows_block(bodies(f"b{number}/{at}", rows))
        room = stage.room(len(block))
        room[:] = block
        stage.append(room, given=at % 2 == 0)
    infos = tuple(stage.finish() for _, stage in stages.values())
    request = CommitRequest(WriterId.of_stream(QUERY, number), infos)
    assert store.batches.commit(request).status == "COMMITTED"


def test_memory_is_used_up_to_its_limit_and_again_once_it_is_free(tmp_path: Path) -> None:
    limit = 30_000
    with StoreWriter.open(tmp_path, small_segments(stagingMemoryBytes=str(limit))) as store:
        first = store.batches.begin_stage(stage_id("first"))
        while all(in_memory(first)):
            first.append(BLOCK)
            assert store.stats()["stagedMemoryBytes"] <= limit
        assert store.stats()["stagedMemoryBytes"] > limit - 2 * len(BLOCK)
        first.append(BLOCK)
        assert in_memory(first) == [True, False]
        second = store.batches.begin_stage(stage_id("second"))
        second.append(BLOCK)
        assert in_memory(second) == [False]
        store.batches.abort([stage_id("first")])
        assert store.stats()["stagedMemoryBytes"] == 0
        third = store.batches.begin_stage(stage_id("third"))
        third.append(BLOCK)
        assert in_memory(third) == [True]
        infos = second.finish(), third.finish()
        store.batches.commit(CommitRequest(WriterId.of_one_write(), infos))
    assert scanned(tmp_path) == bodies("a") * 2


def test_a_stage_in_memory_has_no_files_and_no_folder(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path, small_segments()) as store:
        infos = stage_batch(store, "b0")
        folder = tmp_path / "rmqstore" / "staging"
        assert list(folder.iterdir()) == []
        store.batches.commit(CommitRequest(WriterId.of_one_write(), infos))
        assert list(folder.iterdir()) == []


def test_small_blocks_are_put_together_and_the_memory_that_they_take_is_counted(
    tmp_path: Path,
) -> None:
    with StoreWriter.open(tmp_path, small_segments()) as store:
        stage = store.batches.begin_stage(stage_id("small"))
        blocks = [rows_block(bodies(f"m{n}", 1)) for n in range(2_000)]
        for block in blocks:
            stage.append(block)
        assert len(stage.portions) == 1
        staged = store.stats()["stagedBytes"]
        assert staged <= store.stats()["stagedMemoryBytes"] <= 2 * staged
        store.batches.commit(CommitRequest(WriterId.of_one_write(), (stage.finish(),)))
    assert scanned(tmp_path) == [body for n in range(2_000) for body in bodies(f"m{n}", 1)]


def test_a_block_that_is_changed_after_it_was_staged_is_committed_as_it_was(
    tmp_path: Path,
) -> None:
    block = rows_block(bodies("kept"))
    with StoreWriter.open(tmp_path, small_segments()) as store:
        stage = store.batches.begin_stage(stage_id("kept"))
        stage.append(block)
        block[:] = 0
        store.batches.commit(CommitRequest(WriterId.of_one_write(), (stage.finish(),)))
    assert scanned(tmp_path) == bodies("kept")


@pytest.mark.fault
@pytest.mark.parametrize("table", [np.uint8, ROW_DTYPE, KEY_DTYPE])
def test_a_portion_that_cannot_grow_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: npt.DTypeLike
) -> None:
    allocated = held._Growing._allocated

    def fail(array: held._Growing[Any], count: int) -> Any:
        if array.filled.dtype == table:
            raise MemoryError
        return allocated(array, count)

    with StoreWriter.open(tmp_path, small_segments()) as store:
        stage = store.batches.begin_stage(stage_id("a"))
        stage.append(BLOCK)
        monkeypatch.setattr(held._Growing, "_allocated", fail)
        stage.append(BLOCK)
        assert in_memory(stage) == [True, False]
        monkeypatch.undo()
        store.batches.commit(CommitRequest(WriterId.of_one_write(), (stage.finish(),)))
        assert store.stats()["stagedMemoryBytes"] == 0
    assert scanned(tmp_path) == bodies("a") * 2


@pytest.mark.fault
def test_without_memory_for_a_block_it_goes_to_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(held._Growing, "_allocated", no_memory)
    with StoreWriter.open(tmp_path, small_segments()) as store:
        stage = store.batches.begin_stage(stage_id("a"))
        stage.append(BLOCK)
        assert in_memory(stage) == [False]
        assert store.stats()["stagedMemoryBytes"] == 0
        store.batches.commit(CommitRequest(WriterId.of_one_write(), (stage.finish(),)))
    assert scanned(tmp_path) == bodies("a")


# ---- given back ----------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreWriter]:
    with StoreWriter.open(tmp_path / "store", small_segments()) as opened:
        yield opened


def _abort(store: StoreWriter, stage: Stage) -> None:
    store.batches.abort([stage.stage_id])


def _commit(store: StoreWriter, stage: Stage) -> None:
    store.batches.commit(CommitRequest(WriterId.of_one_write(), (stage.finish(),)))


def _commit_again(store: StoreWriter, stage: Stage) -> None:
    """A stage of an attempt that is not needed: its batch was committed before."""
    first = commit_batch(store, 0)
    infos = stage_batch(store, "b0", attempt=1)
    assert (
        store.batches.commit(CommitRequest(WriterId.of_stream(QUERY, 0), infos)).rows == first.rows
    )
    stage.discard()


GONE: dict[str, Callable[[StoreWriter, Stage], None]] = {
    "aborted": _abort,
    "left by its writer": lambda _, stage: stage.discard(),
    "committed": _commit,
    "committed before": _commit_again,
    "at the end": lambda store, _: store.close(),
}


@pytest.mark.parametrize("how", GONE)
def test_the_memory_of_a_stage_is_given_back(store: StoreWriter, how: str) -> None:
    stage = store.batches.begin_stage(stage_id("a"))
    stage.append(BLOCK)
    assert store.stats()["stagedMemoryBytes"] >= len(BLOCK)
    portions = list(stage.portions)
    GONE[how](store, stage)
    assert store.stats()["stagedMemoryBytes"] == store.stats()["stagedBytes"] == 0
    assert [portion.size for portion in portions] == [0]


def test_the_memory_of_a_stage_that_nobody_uses_is_given_back(tmp_path: Path) -> None:
    times = iter([FIRST_TIME] * 2 + [FIRST_TIME + 1_000])
    with StoreWriter.open(tmp_path / "open") as store:
        limits = StagingLimits(1 << 30, 1 << 30, 1 << 30, 1_000)
        staging = Staging(tmp_path / "staging", store._admission, limits, lambda: next(times))
        staging.begin(stage_id("a")).append(BLOCK)
        assert staging.memory.used >= len(BLOCK)
        assert staging.expire() == 1
        assert (staging.memory.used, staging.staged_bytes) == (0, 0)


def test_the_memory_of_a_stage_that_cannot_be_written_is_given_back(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path, small_segments(stagingMemoryBytes="15000")) as store:
        stage = store.batches.begin_stage(stage_id("a"))
        stage.append(BLOCK)
        assert store.stats()["stagedMemoryBytes"] >= len(BLOCK)
        (tmp_path / "rmqstore" / "staging" / stage_id("a")).touch()
        with pytest.raises(RefusedError, match="could not be written"):
            stage.append(BLOCK)
        assert store.stats()["stagedMemoryBytes"] == store.stats()["stagedBytes"] == 0
        assert store.stats()["stages"] == 0


# ---- while others commit -------------------------------------------------------------------------


def test_a_stage_that_grows_out_of_memory_while_others_commit(tmp_path: Path) -> None:
    config = small_segments(stagingMemoryBytes="40000", mappedFileSizeCommitLog="1048576")
    written: list[bytes] = []
    kinds = set[bool]()
    with StoreWriter.open(tmp_path, config) as store:
        committing = threading.Event()
        found: list[StageInfo] = []

        def grow() -> None:
            stage = store.batches.begin_stage(stage_id("growing"))
            while not committing.is_set() or len(kinds) < 2:
                part = bodies(f"grown{len(written)}", 5)
                stage.append(rows_block(part))
                written.extend(part)
                kinds.update(in_memory(stage))
            found.append(stage.finish())

        growing = threading.Thread(target=grow)
        growing.start()
        for number in range(10):
            assert commit_batch(store, number).status == "COMMITTED"
        committing.set()
        growing.join()
        store.batches.commit(CommitRequest(WriterId.of_one_write(), tuple(found)))
        assert store.stats()["stagedMemoryBytes"] == 0
    assert scanned(tmp_path) == [*expected(*range(10)), *written]


def test_the_next_segment_is_created_while_its_rows_are_staged(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path, small_segments()) as store:
        ready = tmp_path / "rmqstore" / "ready"
        store.put(rows_block(bodies("a", 1)))
        until(lambda: not ready.exists())
        stage = store.batches.begin_stage(stage_id("a"))
        stage.append(BLOCK)
        assert len(BLOCK) > 8192
        until(ready.exists)
        store.batches.commit(CommitRequest(WriterId.of_one_write(), (stage.finish(),)))
    assert scanned(tmp_path) == bodies("a", 1) + bodies("a")


# ---- kept for the next stages --------------------------------------------------------------------


def test_pages_and_files_of_stages_that_are_gone_serve_the_next_until_none_comes(
    tmp_path: Path,
) -> None:
    now, size = [FIRST_TIME], 1 << 20
    with StoreWriter.open(tmp_path / "open") as store:
        limits = StagingLimits(1 << 30, 1 << 30, 8 << 20, 1 << 40)
        staging = Staging(tmp_path / "staging", store._admission, limits, lambda: now[0])
        spare = tmp_path / "staging" / "spare"
        kept: list[tuple[int, list[int]]] = []
        for number in range(2):
            stage = staging.begin(stage_id(str(number)))
            written = [rows_block([bytes([number, k]) * (size // 2)] * 5) for k in range(2)]
            for block in written:
                stage.append(block)
            assert in_memory(stage) == [True, False]
            assert (staging.memory.kept, staging.spares.kept) == (0, 0)
            files = HandleCache[int](os.close, 1)
            for portion, block in zip(stage.portions, written, strict=True):
                records = portion.read_records(np.empty(portion.size, np.uint8), files)
                assert records.tobytes() == block.tobytes()
            staging.expire()
            now[0] += 5_000  # the stage is long
            staging.abort([stage.stage_id])
            kept.append((staging.memory.kept, [file.stat().st_ino for file in spare.iterdir()]))
            assert staging.memory.used == 0
        assert kept[0] == kept[1]
        assert kept[0][0] > 5 * size
        assert len(kept[0][1]) == 1
        staging.expire()
        now[0] += 4_999
        staging.expire()
        assert staging.memory.kept
        assert staging.spares.kept
        now[0] += 1
        staging.expire()
        assert (staging.memory.kept, staging.spares.kept, spare.exists()) == (0, 0, False)


def test_a_large_block_stays_in_the_pages_that_it_was_received_into(tmp_path: Path) -> None:
    limits = StagingLimits(1 << 30, 1 << 30, 8 << 20, 1 << 40)
    block = rows_block([bytes(1 << 20)] * 2)
    with StoreWriter.open(tmp_path / "open") as store:
        staging = Staging(tmp_path / "staging", store._admission, limits, lambda: FIRST_TIME)
        for number in range(2):
            stage = staging.begin(stage_id(str(number)))
            room = stage.room(len(block))
            assert staging.memory.kept == 0
            room[:] = block
            stage.append(room, given=True)
            (portion,) = stage.portions
            files = HandleCache[int](os.close, 1)
            records = portion.read_records(np.empty(0, np.uint8), files)
            assert np.shares_memory(records, room)
            assert records.tobytes() == block.tobytes()
            assert len(block) < staging.memory.used < 3 << 20
            del room, records, portion
            staging.abort([stage.stage_id])
            assert staging.memory.used == 0
            assert len(block) < staging.memory.kept < 3 << 20


def test_pages_of_a_block_that_is_not_held_are_kept_within_the_limit(tmp_path: Path) -> None:
    limits = StagingLimits(1 << 30, 1 << 30, 8 << 20, 1 << 40)
    block = rows_block([bytes(1 << 20)] * 3)
    with StoreWriter.open(tmp_path / "open") as store:
        staging = Staging(tmp_path / "staging", store._admission, limits, lambda: FIRST_TIME)
        stage = staging.begin(stage_id("a"))
        for _ in range(6):
            room = stage.room(len(block))
            room[:] = block
            stage.append(room, given=True)
            del room
            assert staging.memory.used + staging.memory.kept <= 8 << 20
        assert in_memory(stage) == [True, True, False, False]
        staging.abort([stage.stage_id])


def test_pages_that_are_kept_make_way_for_others(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "open") as store:
        limits = StagingLimits(1 << 30, 1 << 30, 8 << 20, 1 << 40)
        staging = Staging(tmp_path / "staging", store._admission, limits, lambda: FIRST_TIME)
        kept: list[int] = []
        large = [[bytes(1 << 20)] * count for count in (5, 6, 3)]
        for number, blocks in enumerate([[rows] for rows in large] + [[[bytes(600_000)]] * 9]):
            stage = staging.begin(stage_id(str(number)))
            for rows in blocks:
                stage.append(rows_block(rows))
                assert staging.memory.used + staging.memory.kept <= 8 << 20
            assert all(in_memory(stage))
            staging.abort([stage.stage_id])
            kept.append(staging.memory.kept >> 20)
        assert kept == [5, 6, 3, 0]


def test_a_spare_file_that_an_earlier_process_left_is_removed(tmp_path: Path) -> None:
    spare = tmp_path / "rmqstore" / "staging" / "spare"
    spare.mkdir(parents=True)
    (spare / "0").write_bytes(b"left")
    with StoreWriter.open(tmp_path, small_segments()):
        assert not spare.exists()
