"""Rounds of faults: what the tests run a share of, and `python -m tests.fault` runs at length."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rmqstore_spark.engine.failpoints import NAMES
from tests.fault.claims import Claims, Outcome
from tests.fault.power import PoweredDisk
from tests.fault.rounds.life import SMALL, Ending, live, settle
from tests.support.sampling import one_in

__all__ = [
    "CALLS",
    "EIO",
    "KILL",
    "PLACES",
    "Tally",
    "at_places",
    "by_calls",
    "injected",
    "kills",
    "power_cuts",
]

LONGEST_LIFE_S: Final = 0.6
CALLS: Final = ("fdatasync", "fsync", "pwrite64", "pwritev2", "rename")
KILL: Final = "signal=KILL"
EIO: Final = "error=EIO"
_OTHERS: Final = ("replica.", "expiry.", "delay", "transaction", "promote.", "demote.")
PLACES: Final = tuple(name for name in NAMES if not name.startswith(_OTHERS))
"""Where a life of puts and batches gets to.

`replication` kills followers at their places; `tests/engine/expiry` does so during expiry,
`tests/engine/delay` during the delivery of delayed messages, `tests/engine/transactions` while
transactions are put and ended, and `tests/ha/test_roles` while roles change.
"""
_ROUNDS_PER_STORE: Final = 20


@dataclass
class Tally:
    """What came of many rounds.

    Attributes:
        rounds: how many there were.
        faults: processes killed, or power cuts.
        acknowledged: messages.
        lost, doubled: messages.
        others: what else went wrong.
    """

    rounds: int = 0
    faults: int = 0
    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    others: tuple[str, ...] = ()

    def add(self, outcome: Outcome) -> None:
        """Count what a comparison found."""
        self.lost += outcome.lost
        self.doubled += outcome.doubled
        self.others += outcome.others

    def __iadd__(self, more: Tally) -> Tally:
        """Count other rounds, too."""
        for name, value in vars(more).items():
            setattr(self, name, getattr(self, name) + value)
        return self

    def require_none(self) -> None:
        """Fail unless nothing went wrong."""
        Outcome(self.lost, self.doubled, self.others).require_none()


def kills(folder: Path, rounds: int, flush: str, *, first_seed: int = 0) -> Tally:
    """Kill a writer at random moments; every second time it is the next one that recovers."""
    tally, settings = Tally(), (*SMALL, f"flushDiskType={flush}")
    for begin in range(0, rounds, _ROUNDS_PER_STORE):
        claims, store = Claims(), folder / f"kills-{begin}" / "store"
        for seed in range(begin, min(begin + _ROUNDS_PER_STORE, rounds)):
            ending = live(
                store, claims, first_seed + seed, settings=settings, kill_after_s=LONGEST_LIFE_S
            )
            tally.rounds += 1
            tally.faults += ending.code < 0
            if claims.operations and seed % 2:
                settle(store, settings)
                tally.add(claims.compare(store))
        settle(store, settings)
        tally.add(claims.compare(store))
        tally.acknowledged += claims.acknowledged
    return tally


def power_cuts(
    folder: Path,
    rounds: int,
    flush: str,
    *,
    mutant: str = "",
    commits: float = 0.3,
    first_seed: int = 0,
) -> Tally:
    """Cut the power of a store's disk at random moments."""
    often = "flushIntervalCommitLog=50"  # under ASYNC_FLUSH: many times in a life
    tally, claims, settings = Tally(), Claims(), (*SMALL, f"flushDiskType={flush}", often)
    with PoweredDisk(folder) as disk:
        store = disk.path / "store"
        for seed in range(first_seed, first_seed + rounds):
            live(
                store,
                claims,
                seed,
                settings=settings,
                kill_after_s=LONGEST_LIFE_S,
                commits=commits,
                mutant=mutant,
            )
            disk.cut_power()
            tally.rounds += 1
            tally.faults += 1
            if claims.operations:
                settle(store, settings)
                tally.add(claims.compare(store, lost_tail=flush == "ASYNC_FLUSH"))
    tally.acknowledged = claims.acknowledged
    return tally


def at_places(
    folder: Path, names: Iterator[str] | None = None, counts: tuple[int, ...] = (1, 2, 7)
) -> Tally:
    """Kill a writer at each named place, when it gets there for the n-th time."""
    tally = Tally()
    for name in names or iter(PLACES):
        claims, store = Claims(), folder / name / "store"
        if not name.startswith("topics."):  # those are made once, in the first life
            live(store, claims, 0, operations=40, failpoint="put.after_write:5")
        killed = 0
        for times in counts:
            ending = live(store, claims, times, operations=40, failpoint=f"{name}:{times}")
            assert ending.code in (0, -9), ending.errors
            killed += ending.code != 0
            tally.rounds += 1
            settle(store)
            tally.add(claims.compare(store))
        assert killed, f"nothing gets to {name}"
        last = live(store, claims, 1, operations=5)
        assert last.code == 0, last.errors
        tally.add(claims.compare(store))
        tally.faults += killed
        tally.acknowledged += claims.acknowledged
    return tally


def injected(
    store: Path, claims: Claims, k: int, call: str, fault: str = KILL
) -> tuple[Ending, bool]:
    """Let a writer live under strace, which makes the k-th call of the kernel fail or kill.

    Returns:
        How it ended, and whether it came to that call.
    """
    log = store.parent / "strace.log"
    # Other calls cost nothing then; but strace 6.1 sends no signal so.
    quick = [] if fault == KILL else ["--seccomp-bpf"]
    prefix = ["strace", "-f", *quick, "-qq", "-o", str(log), "-e", f"trace={call}"]
    prefix += ["-e", f"inject={call}:{fault}:when={k}"]
    settings = (*SMALL, "mappedFileSizeCommitLog=65536", "flushDiskType=SYNC_FLUSH")
    ending = live(store, claims, k, settings=settings, operations=12, prefix=prefix)
    return ending, ending.code in (-9, 137) if fault == KILL else "(INJECTED)" in log.read_text()


def by_calls(folder: Path, call: str, step: int = 1, fault: str = KILL) -> Tally:
    """Kill or fail a writer at the k-th call of the kernel, until it gets through without.

    Args:
        folder: for the stores.
        call: of the kernel.
        step: every so many k; the first changes with the seed.
        fault: what strace injects.
    """
    tally = Tally()
    for k in one_in(step, range(1, 1000)):
        claims, store = Claims(), folder / f"{call}-{k}" / "store"
        store.parent.mkdir()
        ending, fired = injected(store, claims, k, call, fault)
        assert "Traceback" not in ending.errors, ending.errors
        if not fired:
            assert ending.code == 0, ending.errors
            return tally
        again = live(store, claims, k, operations=3)
        assert again.code == 0, again.errors
        tally.rounds += 1
        tally.faults += 1
        tally.acknowledged += claims.acknowledged
        tally.add(claims.compare(store))
        shutil.rmtree(store.parent)
    raise AssertionError(f"a writer that is killed at {call} never comes to its end")
