"""Records that belong together, as the messages of a SEND_BATCH do, lie in one segment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine import PutResult, StoreWriter
from rmqstore_spark.reader import Store
from rmqstore_spark.verify import verify
from tests.support.processes.serving import block_of
from tests.support.stores.storing import as_killed, config, in_queues

SEGMENT = 4096
UNITS = [[b"0" * 1500], [b"1" * 900, b"2" * 900, b"3" * 900], [b"4" * 600, b"5" * 2800]]
"""The first messages of the second and the third would fit behind the unit before them."""
BODIES = [body for unit in UNITS for body in unit]


def put(store: StoreWriter) -> list[int]:
    """Put the units as one block; return the segment of each message."""
    blocks = [block_of(unit) for unit in UNITS]
    return segments(store.put(np.concatenate(blocks), units=[len(unit) for unit in UNITS]))


def segments(result: PutResult) -> list[int]:
    assert result.ok, result.remark
    return (result.physical_offset // SEGMENT).tolist()


def test_a_unit_that_does_not_fit_goes_to_the_next_segment(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with StoreWriter.open(path, config()) as store:
        assert put(store) == [0, 1, 1, 1, 2, 2]
        results = store.put_all([block_of(unit) for unit in UNITS], are_units=True)
        assert [segments(result) for result in results] == [[3], [4, 4, 4], [5, 5]]
        alone = store.put_all([block_of(unit) for unit in UNITS])
        assert [segments(result) for result in alone] == [[6], [6, 6, 7], [7, 8]]
    with Store.open(path) as reader:
        assert verify(reader).ok
    assert in_queues(path)["orders", 0] == BODIES * 3


def test_a_unit_larger_than_a_segment_is_refused_alone(tmp_path: Path) -> None:
    large = block_of([b"x" * 2000] * 2)
    with StoreWriter.open(tmp_path / "s", config()) as store:
        refused = store.put(np.concatenate([large, block_of([b"y"])]), units=[2, 1])
        assert refused.status is PutStatus.MESSAGE_ILLEGAL
        assert "a batch of messages has" in refused.remark
        results = store.put_all([large, *(block_of(unit) for unit in UNITS)], are_units=True)
        assert [result.ok for result in results] == [False, True, True, True]
        assert results[0].remark == refused.remark
        assert store.published_end // SEGMENT == 2, "no segment is left empty for it"


@pytest.mark.fault
def test_promise_3_a_kill_beside_a_blank_leaves_whole_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is on disk before each write to the log, and in the middle of it."""
    path, real, images = tmp_path / "s", os.pwritev, list[Path]()

    def kill() -> None:
        images.append(tmp_path / str(len(images)))
        as_killed(path, images[-1])

    def watched(descriptor: int, buffers: Any, offset: int) -> int:
        kill()
        real(descriptor, [b"".join(buffers)[:1200]], offset)
        kill()
        return real(descriptor, buffers, offset)

    settings = {"flushIntervalConsumeQueue": 600_000, "flushIntervalCommitLog": 600_000}
    with StoreWriter.open(path, config(**settings)) as store:
        put(store)
        store.flush()
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", watched)
            assert put(store) == [3, 4, 4, 4, 5, 5]
    kept = []
    for image in images:
        with StoreWriter.open(image, config()) as store:
            _, *three, four, five = put(store)
            assert (len({*three}), four) == (1, five)
        with Store.open(image) as reader:
            assert verify(reader).ok
        found = in_queues(image)["orders", 0]
        kept.append(len(found) - 2 * len(BODIES))
        assert found == BODIES + BODIES[: kept[-1]] + BODIES
    # A blank, and three units.
    assert kept == [0, 0, 0, 0, 1, 2, 4, 5]
