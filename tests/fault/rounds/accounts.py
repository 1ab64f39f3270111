"""Rounds of processes that work on a store in a way of their own, and are killed; see `Account`."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import ClassVar, Final, Protocol

from tests.fault.claims import Outcome
from tests.fault.power import PoweredDisk
from tests.fault.rounds.life import run
from tests.fault.rounds.writer import Tally

__all__ = ["START", "Account", "PutAccount", "killed_lives"]

START: Final = 1_700_000_000_000
"""What the clock of a store's first process says."""
_ROUNDS_PER_STORE: Final = 20
_AT_A_PLACE: Final = 0.4
_COMPARED: Final = 0.2
_MARGIN_MS: Final = 600_000


class Account(Protocol):
    """What the processes on one store have said, and what the store must hold then.

    Attributes:
        module: the process.
        places: failpoints that it gets to.
        longest_s: seconds after some of its work at which it is killed at the latest.
        options: more of its command line.
        acknowledged: messages.
        number: of the next message.
        now: what the clock says at least.
    """

    module: ClassVar[str]
    places: ClassVar[tuple[str, ...]]
    longest_s: ClassVar[float]
    options: ClassVar[tuple[str, ...]]
    acknowledged: int
    number: int
    now: int

    def take(self, what: str, numbers: list[int]) -> None:
        """Note a line of a process: a word and numbers."""

    def compare(self, store: Path) -> Outcome:
        """Open the store, which recovers it, and compare. May let it complete what is open."""

    def beside(self, store: Path) -> AbstractContextManager[object]:
        """Do something while a process lives."""


class PutAccount:
    """Which messages the processes have put; what an `Account` begins with."""

    options: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self.acknowledged = self.number = 0
        self.now = START
        self._put: set[int] = set()

    def take(self, what: str, numbers: list[int]) -> None:
        """Messages: `begin FIRST COUNT`, `done FIRST COUNT`."""
        first, count = numbers
        if what == "begin":
            self.number = first + count
        elif what == "done":
            self._put.update(range(first, first + count))
            self.acknowledged += count

    def beside(self, store: Path) -> AbstractContextManager[object]:
        """Nothing."""
        return nullcontext()


def killed_lives(
    folder: Path,
    rounds: int,
    account: Callable[[], Account],
    *,
    first_seed: int = 0,
    is_power_cut: bool = False,
    is_mutant: bool = False,
    failpoint: str = "",
) -> Tally:
    """Kill processes at random moments, and at failpoints.

    Args:
        folder: for the stores.
        rounds: how many processes.
        account: makes the account of a new store.
        first_seed: of what the processes do.
        is_power_cut: cut the power of the disk after each kill; the store has SYNC_FLUSH then.
        is_mutant: run the processes with their mutant.
        failpoint: let all of them die there, and nowhere else.
    """
    tally = Tally()
    for begin in range(0, rounds, _ROUNDS_PER_STORE):
        with ExitStack() as ends:
            place = folder / f"lives-{begin}"
            place.mkdir(parents=True)
            disk = ends.enter_context(PoweredDisk(place)) if is_power_cut else None
            store, told = (place if disk is None else disk.path) / "store", account()
            for turn in range(begin, min(begin + _ROUNDS_PER_STORE, rounds)):
                seed = first_seed + turn
                options = [f"flushDiskType={'SYNC_FLUSH' if is_power_cut else 'ASYNC_FLUSH'}"]
                options += [*told.options, *["--mutant"] * is_mutant]
                _live(store, told, seed, tally, options, failpoint)
                if disk is not None:
                    disk.cut_power()
                if told.number and random.Random(seed).random() < _COMPARED:
                    tally.add(told.compare(store))
            if told.number:
                tally.add(told.compare(store))
            tally.acknowledged += told.acknowledged
    return tally


def _live(
    store: Path, told: Account, seed: int, tally: Tally, options: Sequence[str], failpoint: str
) -> None:
    drawn, longest_s = random.Random(seed), None if failpoint else told.longest_s
    if not failpoint and drawn.random() < _AT_A_PLACE:
        failpoint = f"{drawn.choice(told.places)}:{drawn.randint(1, 6)}"
    command = [sys.executable, "-m", told.module, str(store), str(told.number), str(told.now)]
    command += [str(seed), *options]
    with told.beside(store):
        ending = run(command, seed, kill_after_s=longest_s, failpoint=failpoint)
    for line in ending.lines:
        what, *numbers = line.split()
        if what == "now":
            told.now = max(told.now, int(numbers[0]))
        elif what != "ready":
            told.take(what, list(map(int, numbers)))
    told.now += _MARGIN_MS
    tally.rounds += 1
    tally.faults += ending.code < 0
    if ending.code >= 0:
        tally.others += (f"seed {seed} {failpoint}: ended with {ending.code}: {ending.errors}",)
