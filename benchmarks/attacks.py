"""A store process and honest clients of it, while plain clients attack it, or come in crowds."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.figures import Figure
from benchmarks.stores import Stores
from tests.fault.attacks import ATTACKS, MOST_AFTER, MOST_DURING, attacked, run
from tests.fault.crowds import CROWDS, crowded, run_crowd
from tests.fault.port_attacks import PORT_ATTACKS, attack_ports, serving

__all__ = ["attack_figures"]

_SECTION: Final = "The store process under attack"
_MOST_SECONDS: Final = 2.0
_MOST_OF_CROWDS: Final = 0.5
"""Seconds of the other client's p99 while a crowd comes."""


def attack_figures(stores: Stores) -> Iterator[Figure]:
    """Run each attack, and each crowd, of `tests.fault` against processes of its own."""
    stores.folder.mkdir(parents=True, exist_ok=True)
    yield from _store_attacks(stores)
    yield from _port_attacks(stores)
    yield from _crowds(stores)


def _store_attacks(stores: Stores) -> Iterator[Figure]:
    for attack in ATTACKS:
        with (
            tempfile.TemporaryDirectory(prefix="rmqstore-bench-", dir=stores.folder) as folder,
            attacked(Path(folder)) as target,
        ):
            found = run(attack, target)
        p99 = found.latency(0.99)
        is_met = found.peak < MOST_DURING and found.after < MOST_AFTER and p99 < _MOST_SECONDS
        yield Figure(
            _SECTION,
            (attack.__doc__ or attack.__name__).rstrip("."),
            f"peak {found.peak >> 20} MiB",
            "10 s later; honest puts: number, refused, p99",
            f"{found.after >> 20} MiB; {found.puts:,}, {len(found.failed)}, {p99 * 1000:.0f} ms",
            "",
            "600 MiB; 400 MiB; 2 s",
            "yes" if is_met and not found.failed else "no",
        )


def _port_attacks(stores: Stores) -> Iterator[Figure]:
    for how in PORT_ATTACKS:
        with (
            tempfile.TemporaryDirectory(prefix="rmqstore-bench-", dir=stores.folder) as folder,
            serving(Path(folder)) as ports,
        ):
            answered = attack_ports(how, ports)
        p99, slowest = answered.latency(0.99), answered.latencies[-1]
        is_met = answered.peak < MOST_DURING and answered.after < MOST_AFTER and p99 < _MOST_SECONDS
        yield Figure(
            _SECTION,
            (how.__doc__ or how.__name__).rstrip("."),
            f"peak {answered.peak >> 20} MiB",
            "10 s later; honest sends, pulls and routes: number, failed, p99, slowest",
            f"{answered.after >> 20} MiB; {answered.asked:,}, {len(answered.failed)}, "
            f"{p99 * 1000:.0f} ms, {slowest * 1000:.0f} ms",
            "",
            "600 MiB; 400 MiB; 2 s",
            "yes" if is_met and not answered.failed else "no",
        )


def _crowds(stores: Stores) -> Iterator[Figure]:
    for crowd in CROWDS:
        with (
            tempfile.TemporaryDirectory(prefix="rmqstore-bench-", dir=stores.folder) as folder,
            crowded(Path(folder)) as (address, pid),
        ):
            outcome = run_crowd(crowd.__name__, address, pid)
        p99, slowest = outcome.latency(0.99), outcome.latencies[-1]
        is_met = p99 < _MOST_OF_CROWDS and outcome.peak < MOST_DURING and not outcome.failed
        yield Figure(
            _SECTION,
            (crowd.__doc__ or crowd.__name__).rstrip("."),
            f"{outcome.seconds:.1f} s, peak {outcome.peak >> 20} MiB",
            "sends of another client meanwhile: number; refused, of all; p99, slowest",
            f"{outcome.sends:,}; {len(outcome.failed)}; {p99 * 1000:.0f} ms, "
            f"{slowest * 1000:.0f} ms",
            "",
            "none refused; p99 500 ms",
            "yes" if is_met else "no",
        )
