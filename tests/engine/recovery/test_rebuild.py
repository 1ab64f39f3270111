"""`recover --rebuild`: queues and index rebuilt from the log, whatever they contain.

Damage in what is known to be on disk is not looked for when a store is opened: here it is in old
queue files and in full index files, and must be gone afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.layout.index.format import HEADER_SIZE
from rmqstore_spark.layout.queues.consumequeue import CONSUME_QUEUE
from rmqstore_spark.reader import Store
from rmqstore_spark.verify import verify
from tests.support.stores.golden import load_meta, load_queues, load_records
from tests.support.stores.recovering import (
    close_cleanly,
    copy_store,
    entries_of,
    expected_keys,
    indexed_keys,
    opened,
    tree,
)

Golden = Callable[[str], Path]


def flip(path: Path, at: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def queue_file(store: Path, number: int = 0) -> Path:
    """One of the files of a queue that has several."""
    return sorted((store / "consumequeue" / "TopicTest" / "1").iterdir())[number]


def full_index_file(store: Path, number: int = -1) -> Path:
    """One of the index files that nothing is written to any more."""
    return sorted((store / "index").iterdir())[:-1][number]


def problems(store: Path) -> set[str]:
    """Which kinds of damage `verify` finds."""
    with Store.open(store) as reader:
        report = verify(reader)
        return {problem.kind for problem in report.problems if problem.severity == "error"}


def rebuilt(store: Path, folder: Path) -> None:
    """Rebuild a store, and close it."""
    with opened(store, folder, rebuild=True) as found:
        close_cleanly(store, found)


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
@pytest.mark.parametrize("name", ["basic", "trimmed"])
def test_damage_that_is_not_looked_for_is_gone_after_a_rebuild(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, killed: bool
) -> None:
    monkeypatch.setattr("rmqstore_spark.engine.recovery.queue_check._LOOKED_OVER", 2000)
    folder = golden(name)
    store = copy_store(folder, tmp_path)
    begin = load_queues(folder).min_physical_offset
    index, slots = full_index_file(store), load_meta(folder).index_slots
    header = HEADER_SIZE + 4 * slots
    for at in (40 + 3, header + 20 * 29 + 2, header + 20 * 30 + 7, header + 20 * 31 + 19):
        flip(index, at)  # a slot; the hash, place and link of a key
    flip(queue_file(store, -2), 20 * 3 + 10)  # the size in an old entry
    flip(queue_file(store, -2), 20 * 4 + 17)  # the tagsCode
    if killed:
        (store / "abort").touch()
    with opened(store, folder) as found:
        close_cleanly(store, found)
    left = problems(store)  # by an opening that rebuilds nothing
    assert {"index-entry", "index-chain"} <= left
    assert killed or {"entry-size", "tags-code"} <= left  # a killed one walks all of these logs
    rebuilt(store, folder)
    assert problems(store) == set()
    records = [r for r in load_records(folder) if r.physical_offset >= begin]
    assert indexed_keys(store, slots) == expected_keys(records)


@pytest.mark.parametrize("field", range(0, HEADER_SIZE, 4))
def test_no_field_of_an_index_header_can_keep_a_file_from_being_rebuilt(
    golden: Golden, tmp_path: Path, field: int
) -> None:
    folder = golden("basic")
    store = copy_store(folder, tmp_path)
    data = bytearray(full_index_file(store, 1).read_bytes())
    data[field] ^= 0x80
    full_index_file(store, 1).write_bytes(data)
    rebuilt(store, folder)
    assert problems(store) == set()
    assert indexed_keys(store, 500) == expected_keys(load_records(folder))


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
def test_a_queue_whose_first_file_is_gone_where_the_log_begins_late_is_rebuilt(
    golden: Golden, tmp_path: Path, killed: bool
) -> None:
    folder = golden("trimmed")
    store = copy_store(folder, tmp_path)
    before = tree(store)
    with Store.open(store) as reader:
        least = next(q for q in reader.queues(["TopicTest"]) if q.queue_id == 1).min_offset
    per_file = load_meta(folder).consumequeue_file_size // 20
    lost = [p for p in queue_file(store).parent.iterdir() if int(p.name) // 20 <= least + per_file]
    for path in lost:
        path.unlink()
    if killed:
        (store / "abort").touch()
    rebuilt(store, folder)
    assert problems(store) == set()
    backed = {k: v for k, v in before.items() if k.startswith("consumequeue/TopicTest/1/")}
    begins = f"{least // per_file * per_file * 20:020}"
    after = tree(store)
    for name in backed:
        if name[-20:] > begins:
            assert after[name] == before[name]
    with Store.open(store) as reader:
        assert next(q for q in reader.queues(["TopicTest"]) if q.queue_id == 1).min_offset == least


def test_a_last_entry_that_leads_past_the_log_goes_with_a_cut_of_nothing(
    golden: Golden, tmp_path: Path
) -> None:
    folder = golden("basic")
    store = copy_store(folder, tmp_path)
    before = tree(store)
    path = queue_file(store, -1)
    last = len(path.read_bytes().rstrip(b"\0")) // 20 * 20
    flip(path, last + 3)  # 17 GB on
    for rebuild in (False, True):
        with (
            pytest.raises(CorruptStoreError, match="names a record that ends at"),
            opened(store, folder, rebuild=rebuild),
        ):
            pass
    with opened(store, folder, rebuild=True, cut=True) as found:
        assert not found.summary.cuts
        close_cleanly(store, found)
    name = str(path.relative_to(store))
    assert tree(store)[name] == before[name]
    assert problems(store) == set()


def test_a_rebuild_that_finds_nothing_wrong_leaves_the_queues_as_they_are(
    golden: Golden, tmp_path: Path
) -> None:
    folder = golden("lmq")
    store = copy_store(folder, tmp_path)
    before = tree(store)
    with opened(store, folder, rebuild=True) as found:
        assert found.summary.redispatched == 0
        assert found.summary.walked_bytes == found.log_end - found.log_begin
        assert sorted(found.summary.removed_index_files) == sorted(
            name.removeprefix("index/") for name in before if name.startswith("index/")
        )
        close_cleanly(store, found)
    queues = {k: v for k, v in before.items() if k.startswith("consumequeue")}
    assert {k: v for k, v in tree(store).items() if k.startswith("consumequeue")} == queues
    assert problems(store) == set()


def test_a_rebuild_does_without_extension_units(golden: Golden, tmp_path: Path) -> None:
    """An address that was damaged points at another message's unit: no entry keeps one."""
    folder = golden("extcq")
    store = copy_store(folder, tmp_path)
    with opened(store, folder, rebuild=True) as found:
        held = np.array([entry[2] for entry in entries_of(found, "ExtTopic", 0)])
        assert not CONSUME_QUEUE.in_units(held).any()
        close_cleanly(store, found)
    assert problems(store) == set()


def test_a_rebuild_keeps_the_shape_of_the_index(golden: Golden, tmp_path: Path) -> None:
    folder = golden("basic")
    store = copy_store(folder, tmp_path)
    size = full_index_file(store).stat().st_size
    with opened(store, folder, rebuild=True, index_shape=type_shape(folder)) as found:
        close_cleanly(store, found)
    assert {path.stat().st_size for path in (store / "index").iterdir()} == {size}
    assert len(os.listdir(store / "index")) > 1


def test_a_recovery_keeps_the_shape_of_an_index_that_does_not_hold(
    golden: Golden, tmp_path: Path
) -> None:
    folder = golden("unclean")
    store = copy_store(folder, tmp_path)
    *full, newest = sorted((store / "index").iterdir())
    for path in full:
        path.unlink()
    size = newest.stat().st_size
    with opened(store, folder, index_shape=type_shape(folder)) as found:
        close_cleanly(store, found)
    assert not newest.exists()
    assert {path.stat().st_size for path in (store / "index").iterdir()} == {size}
    assert problems(store) == set()


def type_shape(folder: Path) -> object:
    """Another shape than the store's, as a configuration that does not fit it would say."""
    from rmqstore_spark.engine.dispatch.indexes import IndexShape

    meta = load_meta(folder)
    return IndexShape(meta.index_slots * 2, meta.index_entries * 3)
