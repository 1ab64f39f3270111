"""Curves of docs/scale.md: figures and points, how a curve bends; page and plots are up to date."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.report.results import read_results
from benchmarks.scale.curves import bend, beyond, points, shown
from benchmarks.scale.page import PAGE, drawings, scale_page
from benchmarks.scale.table import CURVES

_QUEUES = next(curve for curve in CURVES if curve.name == "queues")


@pytest.mark.parametrize("value", [0.0, 3.2e-7, 0.0456, 12.34, 1234.0])
def test_points_are_read_from_their_figures(value: float) -> None:
    figures = [*_QUEUES.figures(10, {"close": value}), *_QUEUES.figures(1_000, {"close": 1.0})]
    assert points(_QUEUES, figures) == {"close": {10: pytest.approx(value, 1e-3), 1_000: 1.0}}
    other = replace(_QUEUES, name="topics")
    assert points(other, figures) == {}


def test_the_last_step_says_how_a_curve_bends() -> None:
    assert bend({1: 5.0, 10: 5.0, 100: 5.0}) == pytest.approx(0)
    assert bend({1: 9.0, 10: 1.0, 100: 10.0}) == pytest.approx(1)
    assert bend({100: 4.0, 1: 3.0, 10: 0.04}) == pytest.approx(2)


def test_what_lies_beyond_is_a_line_or_a_power() -> None:
    assert beyond({10: 3.0, 100: 12.0}, 1_000) == pytest.approx(102)  # 2 + a tenth of the count
    assert beyond({10: 1.0, 100: 100.0}, 1_000) == pytest.approx(10_000)
    assert beyond({10: 4.0, 100: 1.0}, 1_000) == 1


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "s", "0 ns"),
        (0.0000123, "s", "12.3 us"),
        (599.0, "s", "599 s"),
        (7_200.0, "s", "2 h"),
        (1_234_567.0, "B", "1.23 MB"),
        (0.0123, "%", "1.23 %"),
        (54_321.0, "/s", "54.3 k/s"),
    ],
)
def test_values_have_the_unit_in_which_they_are_short(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text


def test_page_and_plots_are_up_to_date() -> None:
    results = read_results()
    figures = [each.figure for each in results]
    text = PAGE.read_text(encoding="utf-8")
    assert scale_page(figures, [each.measured for each in results], text) == text
    for name, drawn in drawings(figures).items():
        path = PAGE.parents[1] / "benchmarks" / "plots" / name
        assert path.read_text(encoding="utf-8") == drawn
