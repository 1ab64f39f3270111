"""The quick look at queues: it says what the careful one says, or nothing."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.engine.recovery.queue_survey import QueueSurvey
from rmqstore_spark.errors import CorruptStoreError, SegmentExpiredError
from rmqstore_spark.files.directory import StoreDirectory
from rmqstore_spark.files.systems.local import LocalFiles
from rmqstore_spark.layout.queues.consumequeue import CONSUME_QUEUE
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.queue import Queue
from tests.support.stores.golden import load_records
from tests.support.stores.recovering import copy_store
from tests.support.stores.storing import config, messages

Golden = Callable[[str], Path]
Route = tuple[str, int]

FAR = (1 << 63) - 1


def surveyed(store: Path) -> tuple[StoreDirectory, CommitLog, QueueSurvey]:
    directory = StoreDirectory(LocalFiles(), str(store))
    log = CommitLog(directory.commit_log())
    return directory, log, QueueSurvey(directory, log)


def routes(directory: StoreDirectory) -> set[Route]:
    return {(topic, number) for topic, ids in directory.topology.queues.items() for number in ids}


def carefully(
    directory: StoreDirectory, log: CommitLog, route: Route, start: int, *, killed: bool
) -> tuple[int, int] | None:
    """What `reader.queue` finds of a queue that holds no record past an offset."""
    segments = directory.queue(*route)
    queue = Queue(CONSUME_QUEUE, log, *route, segments, None, lambda _: (start, killed))
    if segments.gaps or segments.odd_sizes:
        return None
    try:
        return queue.min_offset, queue.max_offset
    except (SegmentExpiredError, CorruptStoreError):
        return None


def require_same(store: Path, starts: list[int]) -> int:
    """Compare both surveys; returns how many queues the quick one named, for all starts."""
    directory, log, survey = surveyed(store)
    compared = 0
    for start in starts:
        for route, bounds in survey.bounds_before(start).items():
            for killed in (False, True):
                assert bounds == carefully(directory, log, route, start, killed=killed), route
            compared += 1
    return compared


def some_starts(folder: Path) -> list[int]:
    records = load_records(folder)
    return [
        records[0].physical_offset,
        *(r.physical_offset for r in records[:: max(len(records) // 12, 1)]),
        FAR,
    ]


@pytest.mark.parametrize("name", ["basic", "trimmed", "tiny", "flags", "transactions", "unclean"])
def test_both_looks_find_the_same(golden: Golden, name: str) -> None:
    starts = some_starts(golden(name))
    directory, _, survey = surveyed(golden(name) / "store")
    assert len(dict(survey.queues())) > len(routes(directory)) / 2
    assert require_same(golden(name) / "store", starts)


@pytest.mark.parametrize("name", ["basic", "trimmed"])
@pytest.mark.parametrize("seed", range(4))
def test_of_what_is_damaged_nothing_else_is_said(
    golden: Golden, tmp_path: Path, name: str, seed: int
) -> None:
    chosen, starts = random.Random(seed), some_starts(golden(name))
    store = copy_store(golden(name), tmp_path)
    for folder in sorted((store / "consumequeue").glob("*/*"))[::2]:
        last = max(folder.iterdir())
        data = bytearray(last.read_bytes())
        count = CONSUME_QUEUE.slot_from(len(data.rstrip(b"\0")))
        slot = chosen.randrange(count) if count else 0
        at = slot * CONSUME_QUEUE.size
        kind = chosen.choice(["empty", "garbage", "behind", "short", "stray", "lost", "other"])
        if kind == "empty":
            data[at : at + CONSUME_QUEUE.size] = bytes(CONSUME_QUEUE.size)
        elif kind == "garbage":
            data[at : at + CONSUME_QUEUE.size] = chosen.randbytes(CONSUME_QUEUE.size)
        elif kind == "behind":
            data[-CONSUME_QUEUE.size :] = b"\0" * 7 + b"\x01" + bytes(3) + b"\x70" + bytes(8)
        elif kind == "short":
            del data[-7:]
        elif kind == "other":  # a place that holds another message
            data[at : at + CONSUME_QUEUE.size] = data[: CONSUME_QUEUE.size]
        last.write_bytes(data)
        if kind == "stray":
            (folder / "notes").touch()
        elif kind == "lost":
            sorted(folder.iterdir())[chosen.randrange(len(os.listdir(folder)))].unlink()
    directory, _, survey = surveyed(store)
    assert dict(survey.queues()).keys() < routes(directory)
    assert require_same(store, starts)


def test_every_queue_that_was_written_here_is_plain(tmp_path: Path) -> None:
    """However long: else an opening takes the long way for each."""
    store = tmp_path / "s"
    with StoreWriter.open(store, config(mappedFileSizeConsumeQueue=300_000 * 20)) as writer:
        writer.create_topic("many", write_queue_nums=50)
        writer.put_batch(messages([b"x"] * 50, topic="many", queue_id=list(range(50))))
        writer.put_batch(messages([b"x"] * 3000, topic="many", queue_id=7))
        first = writer.put_batch(messages([b"x"] * 50, topic="many", queue_id=list(range(50))))
    directory, log, survey = surveyed(store)
    assert dict(survey.queues()).keys() >= {("many", number) for number in range(50)}
    assert dict(survey.queues()).keys() == routes(directory)
    start = int(first.physical_offset[0])
    assert survey.bounds_before(start)["many", 7] == (0, 3001)
    assert survey.bounds_before(start)["many", 8] == (0, 1)
    assert require_same(store, [0, start, FAR]) == 3 * len(dict(survey.queues()))
    assert log.min_offset == 0


def test_an_opening_reads_each_queue_with_few_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(mappedFileSizeCommitLog=1 << 26)
    count = 300  # more than there are files open at a time
    with StoreWriter.open(tmp_path / "s", settings) as writer:
        writer.create_topic("many", write_queue_nums=count)
        for _ in range(4):  # in several blocks of the log
            body, queue_ids = b"x" * 4_000, list(range(count))
            writer.put_batch(messages([body] * count, topic="many", queue_id=queue_ids))
    calls = 0

    def counted(call: Callable[..., object]) -> Callable[..., object]:
        def run(*given: object, **named: object) -> object:
            nonlocal calls
            calls += 1
            return call(*given, **named)

        return run

    for name in ("open", "pread", "preadv", "lseek", "scandir", "listdir", "stat", "fstat"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    with StoreWriter.open(tmp_path / "s", settings) as writer:
        assert writer.recovery.clean
        assert calls < 8 * count
