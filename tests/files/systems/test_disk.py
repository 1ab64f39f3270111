"""Reads of local files: what they leave in the page cache, and how fast they are."""

from __future__ import annotations

import logging
import os
import pickle
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.files.systems.local import LocalFiles
from rmqstore_spark.files.systems.reads import (
    LEAST_RATE,
    PLAIN,
    CacheWay,
    DiskReads,
    PacedReads,
    SparingReads,
    cached_bytes,
    cached_spans,
)
from tests.support.stores.pages import drop_pages, is_refused_when_cold, resident

SIZE = (16 << 20) + 1000
HOT = 8 << 20
WAYS = [CacheWay.UNCACHED, CacheWay.DROPPED]


@pytest.fixture(scope="module")
def data() -> bytes:
    return np.random.default_rng(7).bytes(SIZE)


@pytest.fixture(scope="module")
def file(on_disk: Path, data: bytes) -> Path:
    path = on_disk / "file"
    path.write_bytes(data)
    return path


@pytest.fixture(scope="module", params=WAYS, ids=[way.name for way in WAYS])
def sparing(request: pytest.FixtureRequest, file: Path) -> SparingReads:
    reads = SparingReads([request.param])
    descriptor = os.open(file, os.O_RDONLY)
    try:
        if reads.way(descriptor) is not request.param:
            pytest.skip(f"this system's file system does not support {request.param.value}")
    finally:
        os.close(descriptor)
    return reads


def test_cold_pages_go_again_and_hot_ones_stay(
    file: Path, data: bytes, sparing: SparingReads
) -> None:
    drop_pages(file)
    file.read_bytes()
    drop_pages(file, 0, HOT)
    assert resident(file, 0, HOT) == 0
    assert resident(file, HOT) == 1
    files = LocalFiles(reads=sparing)
    assert files.read(str(file), 0, HOT // 2) == data[: HOT // 2]
    out = np.zeros(HOT // 2 + 5000, np.uint8)
    assert files.read_into(str(file), HOT // 2, out) == len(out)
    assert out.tobytes() == data[HOT // 2 : HOT + 5000]
    starts = np.arange(HOT, SIZE - 1000, 5000)
    sizes = np.full(len(starts), 1000)
    spans = np.zeros(int(sizes.sum()), np.uint8)
    assert files.read_spans(str(file), starts, sizes, spans) == len(starts)
    assert resident(file, 0, HOT) < 0.1
    assert resident(file, HOT) > 0.9
    files.close()


def test_what_the_page_cache_has_may_be_sent_from_the_file(
    file: Path, sparing: SparingReads
) -> None:
    """To send the rest from there would leave it in the page cache."""
    drop_pages(file)
    file.read_bytes()
    drop_pages(file, 0, HOT)
    paced = PacedReads(sparing)
    descriptor = os.open(file, os.O_RDONLY)
    try:
        assert paced.may_send(descriptor, SIZE - HOT, HOT)
        assert paced.may_send(descriptor, 100, SIZE - 100)
        assert paced.total == SIZE - HOT + 100
        assert not paced.may_send(descriptor, HOT, HOT - 1)
        assert not paced.may_send(descriptor, 100, 0)
        assert paced.total == SIZE - HOT + 100
        assert PLAIN.may_send(descriptor, 100, 0)
    finally:
        os.close(descriptor)
    assert resident(file, 0, HOT) == 0


def test_plain_reads_leave_the_pages(file: Path) -> None:
    """The test before this one can fail."""
    drop_pages(file)
    LocalFiles().read(str(file), 0, SIZE)
    assert resident(file) > 0.9


@given(
    st.lists(
        st.tuples(st.integers(0, 30 << 10), st.integers(0, 20 << 10)), min_size=1, max_size=12
    ),
    st.sampled_from([12 << 20, SIZE - (60 << 10)]),
)
def test_any_spans_are_those_of_plain_reads(
    file: Path, sparing: SparingReads, gaps: list[tuple[int, int]], start: int
) -> None:
    sizes = np.array([size for _, size in gaps], np.int32)
    steps = np.array([gap for gap, _ in gaps], np.int64)
    offsets = start + np.cumsum(steps) + np.concatenate(([0], np.cumsum(sizes[:-1])))
    descriptor = os.open(file, os.O_RDONLY)
    try:
        found = []
        for reads in (PLAIN, sparing):
            out = np.zeros(int(sizes.sum()), np.uint8)
            done = reads.spans(descriptor, offsets, sizes, out)
            found.append((done, out[: int(sizes[:done].sum())].tobytes()))
        assert found[0] == found[1]
        assert sparing.some(descriptor, 100, SIZE - 50) == PLAIN.some(descriptor, 100, SIZE - 50)
    finally:
        os.close(descriptor)


def test_where_nothing_works_reads_are_plain_and_say_so_once(
    file: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    files = LocalFiles(reads=SparingReads([]))
    with caplog.at_level(logging.WARNING):
        assert files.read(str(file), 10, 100) == data[10:110]
        assert files.read(str(file), 20, 100) == data[20:120]
    assert len(caplog.records) == 1
    assert "Run as the user that owns the files" in caplog.text
    files.close()


def test_a_task_of_spark_reads_as_the_driver_does(file: Path, sparing: SparingReads) -> None:
    files = pickle.loads(pickle.dumps(LocalFiles(reads=sparing)))
    drop_pages(file)
    files.read(str(file), 0, SIZE)
    assert resident(file) < 0.1
    files.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_a_rate_is_kept(file: Path, threads: int) -> None:
    """Each read waits until those before it are paid for; a slow machine can only be slower."""
    rate, piece, count = 16 << 20, 256 << 10, 24
    reads: DiskReads = PacedReads(PLAIN, rate)
    descriptor = os.open(file, os.O_RDONLY)

    def work() -> None:
        for number in range(count // threads):
            reads.some(descriptor, piece, number * piece)

    begin = time.monotonic()
    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    took = time.monotonic() - begin
    os.close(descriptor)
    assert isinstance(reads, PacedReads)
    assert reads.total == count * piece
    assert took >= (count - 1) * piece / rate


def test_a_rate_that_clients_would_not_wait_for_is_refused() -> None:
    with pytest.raises(ValueError, match="too low"):
        PacedReads(PLAIN, LEAST_RATE - 1)


def test_what_is_in_memory_is_read_without_waiting(file: Path, data: bytes) -> None:
    file.read_bytes()
    out = np.zeros(300, np.uint8)
    spans = np.array([SIZE - 150, 7, SIZE - 50]), np.array([100, 100, 100], np.int32)
    descriptor = os.open(file, os.O_RDONLY)
    try:
        assert cached_bytes(descriptor, 5000, 1000) == data[1000:6000]
        assert cached_spans(descriptor, *spans, out) == 2  # the last one ends behind the file
        assert out[:200].tobytes() == data[SIZE - 150 : SIZE - 50] + data[7:107]
        with pytest.raises(BlockingIOError):
            cached_bytes(descriptor, 100, SIZE - 50)
        for begin in (0, HOT):
            is_refused_when_cold([file], partial(cached_bytes, descriptor, 5000, begin))
        os.pread(descriptor, SIZE, 0)
        assert cached_bytes(descriptor, 5000, HOT) == data[HOT : HOT + 5000]
    finally:
        os.close(descriptor)


def test_where_the_system_cannot_tell_nothing_is_read_without_waiting(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmqstore_spark.files.systems.reads._RWF_NOWAIT", 0)
    descriptor = os.open(file, os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            cached_bytes(descriptor, 10, 0)
    finally:
        os.close(descriptor)
