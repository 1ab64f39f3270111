"""`jobs/backfill.py`: straight to Parquet against the way through a DataFrame."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.figures import Figure
from benchmarks.stores import Shape, Stores

__all__ = ["backfill_figures"]

ROOT: Final = Path(__file__).resolve().parents[1]
_MESSAGES: Final = {100: 4_000_000, 1024: 1_000_000}
_ROUNDS: Final = 3


def backfill_figures(stores: Stores) -> Iterator[Figure]:
    """Rows a second by the job's own account, which begins when Spark has started."""
    for body, messages in _MESSAGES.items():
        store = stores(Shape(body, 64, messages))
        rates: dict[str, list[float]] = {"straight": [], "through": []}
        for _ in range(_ROUNDS):
            rates["straight"].append(_run(store, messages, []))
            rates["through"].append(_run(store, messages, ["--through-dataframe"]))
        straight, through = (statistics.median(found) for found in rates.values())
        ratio = straight / through
        yield Figure(
            "jobs/backfill.py, local[2]",
            f"straight to Parquet, {body} B, 64 queues",
            f"{straight / 1e3:,.0f} k/s",
            "--through-dataframe",
            f"{through / 1e3:,.0f} k/s",
            f"{ratio:.1f}",
            "3",
            "yes" if ratio >= 3 else "no",
        )


def _run(store: Path, messages: int, arguments: Sequence[str]) -> float:
    with tempfile.TemporaryDirectory(prefix="rmqstore-bench-") as folder:
        command = [sys.executable, "-m", "jobs.backfill", str(store), f"{folder}/out", *arguments]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    summary = re.search(r"([\d,]+) rows.* ([\d.]+) s$", done.stdout.strip(), re.DOTALL)
    if summary is None or int(summary[1].replace(",", "")) != messages:
        raise AssertionError(f"the job did not copy {messages} messages: {done.stdout}")
    return messages / float(summary[2])
