"""Measures some of the curves: `python -m benchmarks.scale queues`."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.__main__ import ROOT
from benchmarks.means.stores import Stores
from benchmarks.report.results import write_results
from benchmarks.scale.measuring import measured_figures
from benchmarks.scale.table import CURVES


def main() -> None:
    """Parse the command line, and do it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    names = [curve.name for curve in CURVES]
    parser.add_argument("name", nargs="+", choices=names)
    parser.add_argument("--most", type=int, default=1 << 62, help="leave greater counts out")
    parser.add_argument("--write", action="store_true", help="write docs/scale.md")
    parser.add_argument("--folder", type=Path, default=ROOT / ".bench", help="of the stores")
    arguments = parser.parse_args()
    figures = []
    for figure in measured_figures(
        Stores(arguments.folder.resolve()),
        [curve.up_to(arguments.most) for curve in CURVES if curve.name in arguments.name],
    ):
        print(figure.name, figure.value, sep=" | ", flush=True)
        figures.append(figure)
    if arguments.write:
        write_results(figures)


if __name__ == "__main__":
    main()
