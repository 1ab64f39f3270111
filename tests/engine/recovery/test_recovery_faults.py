"""Crashes and damage at many places: a store opens by itself, or says why it does not."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.layout.checkpoint import Checkpoint
from rmqstore_spark.reader import Store
from rmqstore_spark.verify import verify
from tests.support.stores.golden import RecordReport, load_meta, load_records
from tests.support.stores.recovering import (
    close_cleanly,
    copy_store,
    expected_keys,
    indexed_keys,
    opened,
    tree,
)

Golden = Callable[[str], Path]

pytestmark = pytest.mark.fault

_SEGMENT = 4096


def killed_copy(golden: Path, folder: Path) -> Path:
    """A store whose process was killed before anything was known to be flushed."""
    store = copy_store(golden, folder)
    (store / "abort").touch()
    (store / "checkpoint").write_bytes(Checkpoint().encode())
    return store


def zero(store: Path, start: int, end: int) -> None:
    """Let a stretch of the log never have reached the disk."""
    for at in range(start, end):
        path = store / "commitlog" / f"{at // _SEGMENT * _SEGMENT:020}"
        with path.open("r+b") as file:
            file.seek(at % _SEGMENT)
            file.write(b"\0")


def assert_ends_after(store: Path, golden: Path, records: list[RecordReport]) -> None:
    """The store must hold these records, whole, in queues and index, and no others."""
    with opened(store, golden) as found:
        assert found.queues.ranges().keys() == {r.topic for r in records}
        for (topic, queue_id), count in routes(records).items():
            assert found.queues.max_offset(topic, queue_id) == count
        end = found.log_end
        close_cleanly(store, found)
    assert indexed_keys(store, load_meta(golden).index_slots) == expected_keys(records)
    with Store.open(store) as reader:
        assert verify(reader).ok
        for path in (store / "commitlog").iterdir():
            tail = path.read_bytes()[max(0, end - int(path.name)) :]
            assert int(path.name) <= end
            assert int(path.name) + _SEGMENT < end or not any(tail)


def routes(records: list[RecordReport]) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for r in records:
        found[r.topic, r.queue_id] = found.get((r.topic, r.queue_id), 0) + 1
    return found


@pytest.mark.parametrize("back", range(0, 240, 7))
def test_promise_3_the_log_is_cut_at_any_byte_of_its_last_record(
    golden: Golden, tmp_path: Path, back: int
) -> None:
    folder = golden("tiny")
    records = load_records(folder)
    last = records[-1]
    end = last.physical_offset + last.store_size
    at = max(end - 1 - back, last.physical_offset)
    store = killed_copy(folder, tmp_path)
    length = 2 + len(last.properties_raw)
    zero(store, at, end)
    if end - at < length and not any(last.properties_raw[at - (end - length) - 2 :]):
        pytest.skip("nothing changed")
    if at > end - len(last.properties_raw):
        # The format has no checksum of properties: RocketMQ takes the record too.
        with opened(store, folder) as found:
            assert found.log_end == end
        return
    assert_ends_after(store, folder, records[:-1])


@pytest.mark.parametrize("number", range(5, 60, 6))
def test_promise_3_a_hole_in_what_was_not_flushed_ends_the_log_before_it(
    golden: Golden, tmp_path: Path, number: int
) -> None:
    folder = golden("tiny")
    records = load_records(folder)
    store = killed_copy(folder, tmp_path)
    at = records[number].physical_offset
    zero(store, at, min(at + 512, at // _SEGMENT * _SEGMENT + _SEGMENT))
    assert_ends_after(store, folder, records[:number])
    (kept,) = (store / "rmqstore" / "cut").iterdir()
    assert kept.name.startswith(f"{at:020}-")


_PARTS = ("commitlog", "commitlog", "consumequeue", "index", "checkpoint", "config")


def damage(store: Path, rnd: random.Random) -> None:
    """Change some files as a disk might."""
    for _ in range(rnd.choice([1, 1, 2, 4])):
        part = rnd.choice(_PARTS)
        paths = [p for p in sorted(store.glob(f"{part}/**/*")) if p.is_file()]
        paths += [store / "checkpoint"] if part == "checkpoint" else []
        paths = [p for p in paths if p.exists() and p.stat().st_size]
        if not paths:
            continue
        path = rnd.choice(paths)
        data = bytearray(path.read_bytes())
        at = rnd.randrange(len(bytes(data).rstrip(b"\0")) or 1)
        match rnd.choice(["flip", "zero", "noise", "sector", "cut", "gone"]):
            case "flip":
                data[at] ^= 1 << rnd.randrange(8)
            case "zero":
                data[at : at + 64] = bytes(len(data[at : at + 64]))
            case "noise":
                data[at : at + 64] = rnd.randbytes(len(data[at : at + 64]))
            case "sector":
                begin = at // 512 * 512
                data[begin : begin + 512] = bytes(len(data[begin : begin + 512]))
            case "cut":
                del data[at:]
            case _:
                path.unlink()
                continue
        path.write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_promise_8_whatever_is_damaged_it_opens_or_says_why_not(
    golden: Golden, tmp_path: Path, seed: int
) -> None:
    """And what was opened once opens again as it is."""
    rnd = random.Random(seed)
    names = ["unclean", "tiny", "lmq", "delayed", "extcq", "live", "trimmed", "boundary"]
    said: list[str] = []
    outcomes = {"opened": 0, "refused": 0}
    for _ in range(25):
        folder = golden(rnd.choice(names))
        store = copy_store(folder, tmp_path)
        if rnd.random() < 0.7:
            (store / "abort").touch()
        damage(store, rnd)
        try:
            with opened(store, folder, cut=rnd.random() < 0.5) as found:
                close_cleanly(store, found)
        except RmqStoreError as error:
            said.append(str(error))
            outcomes["refused"] += 1
        else:
            outcomes["opened"] += 1
            before = tree(store)
            with opened(store, folder) as again:
                assert again.summary.clean
                assert (again.summary.redispatched, again.log_end) == (0, found.log_end)
                close_cleanly(store, again)
            assert tree(store) == before
        shutil.rmtree(store)
    assert all(str(tmp_path) in text for text in said)
    assert outcomes["opened"] > outcomes["refused"] > 0
