"""The stores of `python -m benchmarks --only stores` do the same, and their page is up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.report.plots import plot
from benchmarks.report.results import read_results
from benchmarks.stores.kind import Opening
from benchmarks.stores.kinds import KINDS
from benchmarks.stores.messages import Load
from benchmarks.stores.page import STORE_PLOTS, STORES_PAGE, stores_page

_LOAD = Load(100, 3, 400)


def test_page_and_plots_are_up_to_date() -> None:
    results = read_results()
    figures = [each.figure for each in results]
    text = STORES_PAGE.read_text(encoding="utf-8")
    assert stores_page(figures, [each.measured for each in results], text) == text
    for name, each in STORE_PLOTS.items():
        path = STORES_PAGE.parents[1] / "benchmarks" / "plots" / f"{name}.svg"
        assert plot(each, figures) == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", KINDS)
def test_a_store_keeps_reads_finds_and_expires(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    if kind.missing() or name in ("PostgreSQL", "MariaDB"):
        pytest.skip("needs a server or a package that tests do not need")
    place = str(tmp_path)
    store = kind.open(Opening(place, _LOAD.queues, new=True))
    for batch in _LOAD.batches(150):  # as columns
        store.append(batch[:120], 0)
        for each in batch[120:]:
            store.append([each], 0)
    store.settle()
    if kind.keeps:
        store.close()
        store = kind.open(Opening(place, _LOAD.queues))
    for most in (32, 1_000):
        bodies = store.read(1, 70, most)
        expected = [_LOAD.body(number) for number in range(70 * 3 + 1, _LOAD.count, 3)]
        assert bodies == expected[:most]
    assert store.find(_LOAD.key(250)) == [_LOAD.body(250)]
    assert store.find("order-unknown") == []
    store.expire(_LOAD.stored(_LOAD.count // 2))
    assert store.find(_LOAD.key(399)) == [_LOAD.body(399)]
    if name != "this store":  # it has one segment
        assert store.find(_LOAD.key(0)) == []
    store.close()
