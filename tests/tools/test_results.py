"""benchmarks/RESULTS.md and its plots show what is in results.csv."""

from __future__ import annotations

from pathlib import Path

from benchmarks.report.figures import Figure
from benchmarks.report.page import page
from benchmarks.report.plots import PLOTS, plot
from benchmarks.report.results import read_results

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def test_page_and_plots_are_up_to_date() -> None:
    results = read_results()
    figures = [each.figure for each in results]
    text = (FOLDER / "RESULTS.md").read_text(encoding="utf-8")
    assert page(figures, [each.measured for each in results], text) == text
    for name, each in PLOTS.items():
        shown = (FOLDER / "plots" / f"{name}.svg").read_text(encoding="utf-8")
        assert plot(each, figures) == shown
        bars = sum(len(bars) for bars in each.groups.values())
        assert shown.count('height="14"') == bars  # a bar without a figure is left out


def test_sizes_share_a_row() -> None:
    figures = [
        Figure("Decode, bodies of 100 B", "all", "3.8 M/s, 258 ns", "R", "", "3.2", "2", "yes"),
        Figure("Decode, bodies of 4 KiB", "all", "1.0 M/s, 963 ns", "R", "", "1.9", "2", "no"),
        Figure("A new section", "1 KiB, x", "5 ms", aim="6 ms", met="yes"),
    ]
    text = page(figures, ["2026-01-02; a machine"] * 3, "\n## Where an aim is missed\n\nThus.\n")
    assert "| **Decode**: all (100 B, 4 KiB) | 3.8; 1.0 M/s | R | 3.2; 1.9 | 2 | yes; no |" in text
    assert "\n## Other\n" in text
    assert "| **A new section**: x (1 KiB) | 5 ms |  |  | 6 ms | yes |" in text
    assert text.endswith("\n## Where an aim is missed\n\nThus.\n")
