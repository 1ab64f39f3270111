"""The driver of all rounds: scenes of a row of the table, one store each, and what came of them."""

from __future__ import annotations

import random
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Protocol

from tests.fault.claims import Outcome


class Told(Protocol):
    """What was said by who works on a store."""

    @property
    def acknowledged(self) -> int:
        """How many messages were acknowledged."""


class Over(Exception):
    """The scene has no such round: all that there are have been."""


@dataclass
class Tally:
    """What came of many rounds.

    Attributes:
        rounds: how many there were.
        faults: processes killed, power cuts, or what else was broken.
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

    @property
    def is_wrong(self) -> bool:
        """Whether something went wrong."""
        return bool(self.lost or self.doubled or self.others)

    def require_none(self) -> None:
        """Fail unless nothing went wrong."""
        Outcome(self.lost, self.doubled, self.others).require_none()


@dataclass(kw_only=True)
class Scene(ABC):
    """A store, what works on it, and what is done to these, a round at a time.

    Attributes:
        folder: of its own.
        seed: of all that is drawn.
        index: which of the scenes of its row it is.
        store: the store directory; its folder is there.
        drawn: what happens when.
        told: who counts what was acknowledged.
        tally: of its rounds.
        done: what was done, for who reads of a failure.
        ends: what ends with it.
    """

    folder: Path
    seed: int = 0
    index: int = 0

    def __post_init__(self) -> None:
        self.store, self.drawn = self.folder / "store", random.Random(self.seed)
        self.told: Sequence[Told] = ()
        self.tally, self.done, self.ends = Tally(), [f"seed {self.seed}"], ExitStack()

    def begin(self) -> None:  # noqa: B027  # some need nothing
        """Start what works on the store."""

    @abstractmethod
    def round(self, number: int, seed: int) -> bool:
        """Break something, and mend it; returns whether there was a fault.

        Args:
            number: of the round in its row.
            seed: of the round.

        Raises:
            Over: the row has no such round.
        """

    @abstractmethod
    def finish(self) -> Outcome:
        """End what works, and compare the store with what was said of it."""

    @property
    def acknowledged(self) -> int:
        """How many messages were."""
        return sum(each.acknowledged for each in self.told)


@dataclass(frozen=True)
class Row:
    """A row of the table: a fault, what it happens to, and what must hold.

    Attributes:
        name: what was done, as docs/reliability.md has it.
        scene: makes the scene of a store. Its class says what runs, what is killed or broken and
            when, and what must hold in the end.
        promises: those of docs/reliability.md that must hold.
        on_one: so many rounds are on one store.
        share: one round for so many of a long run's; 0: as many as there are.
        tested: rounds of a test; where there are so many and no more, one in so many of them.
        is_slow: leave it to the slow tests.
        lacks: why this machine cannot do that; empty if it can.
    """

    name: str
    scene: Callable[..., Scene]
    promises: str = ""
    on_one: int = 20
    share: int = 1
    tested: int = 0
    is_slow: bool = False
    lacks: Callable[[], str] = str

    def told(self, scene: Scene) -> str:
        """What must hold, and what was done, with the seed that draws the same."""
        return f"promises {self.promises}: {', '.join(scene.done)}"


def run(row: Row, folder: Path, numbers: Iterable[int], seed: int = 0) -> Tally:
    """Do rounds of a row, and name the seed of what goes wrong.

    Args:
        row: of the table.
        folder: for the stores. Those of what goes wrong are left there.
        numbers: of the rounds, ascending; those of one `on_one` are on one store.
        seed: of all rounds together.
    """
    tally = Tally()
    for index, of_one in groupby(numbers, lambda number: number // row.on_one):
        place = folder / str(index)
        place.mkdir(parents=True)
        scene = row.scene(folder=place, seed=seed + index * row.on_one, index=index)
        try:
            with scene.ends:
                scene.begin()
                for number in of_one:
                    scene.tally.faults += scene.round(number, seed + number)
                    scene.tally.rounds += 1
                scene.tally.add(scene.finish())
        except Over:
            break
        except BaseException:
            sys.stderr.write(f"{row.name}: {row.told(scene)}\n")
            raise
        if scene.tally.is_wrong:
            scene.tally.others += (row.told(scene),)
        else:
            shutil.rmtree(place)
        scene.tally.acknowledged = scene.acknowledged
        tally += scene.tally
    return tally
