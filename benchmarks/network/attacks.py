"""A store process and honest clients of it, while plain clients attack it, or come in crowds."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.means.stores import Stores
from benchmarks.report.figures import Figure
from tests.fault.attacks.driver import MOST_AFTER, MOST_DURING, Outcome, attacked, run
from tests.fault.attacks.table import ATTACKS, Row

__all__ = ["attack_figures"]

_SECTION: Final = "The store process under attack"
_MOST_SECONDS: Final = 2.0
_MOST_OF_CROWDS: Final = 0.5
"""Seconds of the other client's p99 while a crowd comes."""
_ASKED: Final = {
    "store": "10 s later; honest puts: number, refused, p99",
    "ports": "10 s later; honest sends, pulls and routes: number, failed, p99, slowest",
}


def attack_figures(stores: Stores) -> Iterator[Figure]:
    """Run each attack, and each crowd, of `tests.fault` against processes of its own."""
    stores.folder.mkdir(parents=True, exist_ok=True)
    for row in ATTACKS:
        with (
            tempfile.TemporaryDirectory(prefix="rmqstore-bench-", dir=stores.folder) as folder,
            attacked(Path(folder), row.on) as target,
        ):
            found = run(row.does, target)
        yield _of_crowd(row, found) if row.on == "broker" else _of_attack(row, found)


def _of_attack(row: Row, found: Outcome) -> Figure:
    p99, slowest = found.latency(0.99), found.latencies[-1]
    is_met = found.peak < MOST_DURING and found.after < MOST_AFTER and p99 < _MOST_SECONDS
    times = f"{p99 * 1000:.0f} ms" + f", {slowest * 1000:.0f} ms" * (row.on == "ports")
    return Figure(
        _SECTION,
        row.what,
        f"peak {found.peak >> 20} MiB",
        _ASKED[row.on],
        f"{found.after >> 20} MiB; {found.asked:,}, {len(found.failed)}, {times}",
        "",
        "600 MiB; 400 MiB; 2 s",
        "yes" if is_met and not found.failed else "no",
    )


def _of_crowd(row: Row, found: Outcome) -> Figure:
    p99, slowest = found.latency(0.99), found.latencies[-1]
    refused = len(found.failed) + (found.told != row.told)
    is_met = p99 < _MOST_OF_CROWDS and found.peak < MOST_DURING and not refused
    return Figure(
        _SECTION,
        row.what,
        f"{found.seconds:.1f} s, peak {found.peak >> 20} MiB",
        "sends of another client meanwhile: number; refused, of all; p99, slowest",
        f"{found.asked:,}; {refused}; {p99 * 1000:.0f} ms, {slowest * 1000:.0f} ms",
        "",
        "none refused; p99 500 ms",
        "yes" if is_met else "no",
    )
