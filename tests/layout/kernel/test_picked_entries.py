"""The entries that a consumer gets, and reads of spans: both kernels, on anything."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.kernel.reference import plain
from rmqstore_spark.layout.kernel.reference.entries import VOID_CODE
from rmqstore_spark.layout.queues.consumequeue import CONSUME_QUEUE

SEGMENT = 4096
CODES = st.sampled_from(
    [-(2**63), -(2**31) - 1, -(2**31), -7, 0, 7, 2**31 - 1, 2**32 + 7, VOID_CODE]
)
SIZES = st.sampled_from([-1, 0, 90, 91, 200, 1000, SEGMENT, SEGMENT + 1, 1 << 24, 2**31 - 1])
ENTRY = st.tuples(st.integers(-2, 6 * SEGMENT), SIZES, CODES) | st.just((0, 2**31 - 1, 0))
PLACE = st.integers(0, 6 * SEGMENT)


@pytest.mark.threat("The compiled kernel stays within its buffers")
@given(
    entries=st.lists(ENTRY, max_size=60),
    rest=st.integers(0, 19),
    codes=st.none() | st.sets(st.sampled_from([-(2**31), -7, -1, 0, 7, 8])),
    log=st.tuples(PLACE, PLACE, st.just(SEGMENT), PLACE),
    limits=st.tuples(
        st.integers(1, 40), st.integers(0, 5000), st.integers(0, 10), st.integers(0, 3000)
    ),
)
def test_both_kernels_pick_the_same(
    entries: list[tuple[int, int, int]],
    rest: int,
    codes: set[int] | None,
    log: tuple[int, int, int, int],
    limits: tuple[int, int, int, int],
) -> None:
    if not kernel.COMPILED:
        pytest.skip("the compiled kernel was not built on this machine")
    columns = [np.array([each[at] for each in entries], np.int64) for at in range(3)]
    data = np.frombuffer(CONSUME_QUEUE.encode(*columns).tobytes() + bytes(rest), np.uint8)
    wanted = None if codes is None else np.array(sorted(codes), np.int32)
    seen = []
    for module in (kernel._choose(), plain):
        places, sizes = np.zeros(limits[0], np.int64), np.zeros(limits[0], np.int32)
        count, looked_at, is_wanted = module.pick_entries(data, wanted, log, limits, places, sizes)
        seen.append((count, looked_at, bool(is_wanted), places.tolist(), sizes.tolist()))
    assert seen[0] == seen[1]
    count, looked_at, _, held, _ = seen[0]
    assert count <= looked_at <= len(entries)
    assert all(log[0] <= place < log[1] for place in held[:count])
    void = {place for place, _, code in entries if code == VOID_CODE}
    assert void.isdisjoint(
        set(held[:count]) - {each[0] for each in entries if each[2] != VOID_CODE}
    )


@pytest.mark.parametrize("module", [kernel.active, plain], ids=["active", "plain"])
@given(
    spans=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60), st.booleans()), max_size=20),
    size=st.integers(0, 300),
)
def test_spans_that_follow_one_another_are_read_as_any_others(
    module: Any,
    spans: list[tuple[int, int, bool]],
    size: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.getbasetemp() / "spans"
    content = bytes(at % 251 for at in range(size))
    path.write_bytes(content)
    asked: list[tuple[int, int]] = []
    for offset, length, follows in spans:
        asked.append((sum(asked[-1]) if follows and asked else offset, length))
    offsets, lengths = (np.array([each[at] for each in asked], np.int64) for at in range(2))
    out = np.zeros(int(lengths.sum()), np.uint8)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        done = module.pread_spans(descriptor, offsets, lengths.astype(np.int32), out)
    finally:
        os.close(descriptor)
    fits = [not length or at + length <= size for at, length in asked]
    assert done == [*fits, False].index(False)
    expected = b"".join(content[at : at + length] for at, length in asked[:done])
    assert out.tobytes()[: len(expected)] == expected
