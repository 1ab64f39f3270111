"""How long stores of more and more queues take to open, to be looked at, and to close."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.means.child import in_child
from benchmarks.means.stores import Stores
from benchmarks.report.figures import Figure, met, ratio_cells
from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.reader import Store
from tests.support.stores.sparse import wide_store

__all__ = ["measure_opening", "opening_figures"]

_SECTION: Final = "Opening a store, by its queues"
_ROUNDS: Final = {1_000: 5, 10_000: 3, 100_000: 1}  # by the number of queues
_QUEUES: Final = tuple(_ROUNDS)
_STEPS: Final = ("opened for writing", "closed", "opened and listed", "the offsets of all queues")
_AIMS: Final = {("opened for writing", 10_000): 1.0}  # seconds
_MOST_GROWTH: Final = 1.25
"""How many times as long a queue may take if there are ten times as many: caches get colder."""


def opening_figures(stores: Stores) -> Iterator[Figure]:
    """Each round in a new process, on stores that were closed cleanly; four messages a queue."""
    stores.folder.mkdir(parents=True, exist_ok=True)
    before: dict[str, float] = {}
    for queues in _QUEUES:
        with tempfile.TemporaryDirectory(prefix="opening-", dir=stores.folder) as folder:
            path = str(wide_store(Path(folder) / "wide", queues))
            measure = "benchmarks.engine.opening:measure_opening"
            # The first opening makes the index, of which there is none.
            in_child("benchmarks.engine.recovery:measure_open", store=path)
            rounds = [in_child(measure, store=path) for _ in range(_ROUNDS[queues])]
        for step in _STEPS:
            took = statistics.median(each[step] for each in rounds)
            each, name = took / queues, f"{queues:,} queues: {step}"
            value = f"{took:.3f} s, {each * 1e6:.0f} us a queue"
            aim = _AIMS.get((step, queues))
            if aim is not None:
                yield Figure(_SECTION, name, value, aim=f"under {aim:.0f} s", met=met(took < aim))
            elif queues == _QUEUES[-1]:
                cells = ratio_cells(each / before[step], at_most=_MOST_GROWTH)
                yield Figure(
                    _SECTION, name, value,
                    f"{_QUEUES[-2]:,} queues, each", f"{before[step] * 1e6:.0f} us", *cells,
                )  # fmt: skip
            else:
                yield Figure(_SECTION, name, value)
            before[step] = each


def measure_opening(store: str) -> dict[str, float]:
    """Seconds that the steps of `_STEPS` take."""
    marks = [time.perf_counter()]
    writer = StoreWriter.open(store)
    marks.append(time.perf_counter())
    writer.close()
    marks.append(time.perf_counter())
    with Store.open(store) as reader:
        reader.topics()
        queues = reader.queues()
        marks.append(time.perf_counter())
        if not all(queue.max_offset > queue.min_offset for queue in queues):
            raise SystemExit("a queue is empty")
        marks.append(time.perf_counter())
    steps = zip(_STEPS, marks, marks[1:], strict=False)
    return {step: end - begin for step, begin, end in steps}
