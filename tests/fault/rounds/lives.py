"""A process on a store of its own that is killed, or whose disk loses its power, in its lives.

What it says it has done goes to an `Account`, which knows what the store must hold then.
"""

from __future__ import annotations

import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from rmqstore_spark.engine.failpoints import NAMES
from tests.fault.claims import Claims, Outcome
from tests.fault.power import PoweredDisk
from tests.fault.rounds.driver import Over, Scene
from tests.fault.rounds.life import SMALL, Ending, live, run_life, settle

START: Final = 1_700_000_000_000
"""What the clock of a store's first process says."""
LONGEST_LIFE_S: Final = 0.6
"""Of a writer."""
CALLS: Final = ("fdatasync", "fsync", "pwrite64", "pwritev2", "rename")
KILL: Final = "signal=KILL"
EIO: Final = "error=EIO"
_OTHERS: Final = ("replica.", "expiry.", "delay", "transaction", "promote.", "demote.", "group.")
PLACES: Final = tuple(name for name in NAMES if not name.startswith(_OTHERS))
"""Where a life of puts and batches gets to.

`replication` kills followers at their places; `tests/engine/expiry` does so during expiry,
`tests/engine/delay` during the delivery of delayed messages, `tests/engine/transactions` while
transactions are put and ended, `tests/ha/test_roles` while roles change, and `tests/engine/group`
while a group commits.
"""
COUNTS: Final = (1, 2, 7)
_AT_A_PLACE: Final = 0.4
_MARGIN_MS: Final = 600_000


class Account(ABC):
    """What the processes on one store have said, and what the store must hold then.

    Attributes:
        module: the process.
        places: failpoints that it gets to.
        longest_s: seconds after some of its work at which it is killed at the latest.
        compared: after how many of its lives the store is compared; else the next one recovers it.
        options: more of its command line.
        is_timed: whether its store has a clock of its own.
        acknowledged: messages.
        number: of the next message.
        now: what the clock says at least.
    """

    module: ClassVar[str]
    places: ClassVar[tuple[str, ...]] = ()
    longest_s: ClassVar[float]
    compared: ClassVar[float] = 0.2
    options: ClassVar[tuple[str, ...]] = ()
    is_timed: ClassVar[bool] = True

    def __init__(self) -> None:
        self.acknowledged = self.number = 0
        self.now = START

    def take(self, what: str, numbers: list[int]) -> None:
        """Note a line of a process: a word and numbers."""
        raise NotImplementedError

    @abstractmethod
    def compare(self, store: Path, settings: Sequence[str], *, lost_tail: bool) -> Outcome:
        """Open the store, which recovers it, and compare. May let it complete what is open.

        Args:
            store: its directory.
            settings: of its configuration.
            lost_tail: a power cut may have lost puts that were not on disk.
        """

    def beside(self, store: Path) -> AbstractContextManager[object]:
        """Do something while a process lives."""
        return nullcontext()

    def live(
        self, store: Path, seed: int, settings: Sequence[str], mutant: str, failpoint: str,
        kill_after_s: float | None,
    ) -> Ending:  # fmt: skip
        """Let a process live."""
        now = self.now if self.is_timed else 0
        command = [sys.executable, "-m", self.module, str(store), str(self.number), str(now)]
        command += [str(seed), *settings, *self.options]
        command += ["--mutant", mutant] if mutant else []
        with self.beside(store):
            ending = run_life(command, seed, kill_after_s=kill_after_s, failpoint=failpoint)
        for line in ending.lines:
            what, *numbers = line.split()
            if what == "now":
                self.now = max(self.now, int(numbers[0]))
            elif what != "ready":
                self.take(what, list(map(int, numbers)))
        self.now += _MARGIN_MS
        return ending


class PutAccount(Account):
    """Which messages the processes have put; what several accounts begin with."""

    def __init__(self) -> None:
        super().__init__()
        self._put: set[int] = set()

    def take(self, what: str, numbers: list[int]) -> None:
        """Messages: `begin FIRST COUNT`, `done FIRST COUNT`."""
        first, count = numbers
        if what == "begin":
            self.number = first + count
        elif what == "done":
            self._put.update(range(first, first + count))
            self.acknowledged += count


class WriterAccount(Account):
    """Puts and batches, in order, once, and batches whole.

    Args:
        commits: share of the batches.
    """

    longest_s: ClassVar[float] = LONGEST_LIFE_S
    compared: ClassVar[float] = 0.5

    def __init__(self, commits: float = 0.3) -> None:
        super().__init__()
        self._claims, self._commits = Claims(), commits

    def live(
        self, store: Path, seed: int, settings: Sequence[str], mutant: str, failpoint: str,
        kill_after_s: float | None,
    ) -> Ending:  # fmt: skip
        """Let a writer live."""
        ending = live(
            store, self._claims, seed, settings=(*SMALL, *settings), commits=self._commits,
            kill_after_s=kill_after_s, mutant=mutant, failpoint=failpoint,
        )  # fmt: skip
        self.number, self.acknowledged = self._claims.next_number, self._claims.acknowledged
        return ending

    def compare(self, store: Path, settings: Sequence[str], *, lost_tail: bool) -> Outcome:
        settle(store, (*SMALL, *settings))
        return self._claims.compare(store, lost_tail=lost_tail)


@dataclass(kw_only=True)
class Lives(Scene):
    """Processes that are killed at random moments and at failpoints, one after the other.

    Attributes:
        account: makes the account of a new store.
        flush: flushDiskType.
        is_power_cut: cut the power of the disk after each kill.
        settings: more of the store's configuration.
        mutant: run the processes with this mutant.
        failpoint: let all of them die there, and nowhere else.
    """

    account: Callable[[], Account]
    flush: str = "ASYNC_FLUSH"
    is_power_cut: bool = False
    settings: tuple[str, ...] = ()
    mutant: str = ""
    failpoint: str = ""

    def begin(self) -> None:
        self._account = self.account()
        self.told = [self._account]
        self._settings = (f"flushDiskType={self.flush}", *self.settings)
        self._may_lose = self.is_power_cut and self.flush == "ASYNC_FLUSH"
        self._disk = None
        if self.is_power_cut:
            self._disk = self.ends.enter_context(PoweredDisk(self.folder))
            self.store = self._disk.path / "store"

    def round(self, number: int, seed: int) -> bool:
        account, drawn, failpoint = self._account, random.Random(seed), self.failpoint
        if not failpoint and account.places and drawn.random() < _AT_A_PLACE:
            failpoint = f"{drawn.choice(account.places)}:{drawn.randint(1, 6)}"
        self.done.append(f"{seed} {failpoint}")
        longest_s = None if self.failpoint else account.longest_s
        ending = account.live(self.store, seed, self._settings, self.mutant, failpoint, longest_s)
        if ending.code >= 0:
            self.tally.others += (f"ended with {ending.code}: {ending.errors}",)
        if self._disk is not None:
            self._disk.cut_power()
        if self._may_lose or drawn.random() < account.compared:
            self.tally.add(self.finish())
        return ending.code < 0

    def finish(self) -> Outcome:
        if not self._account.number:
            return Outcome(0, 0, ())
        return self._account.compare(self.store, self._settings, lost_tail=self._may_lose)


class _Writer(Scene):
    """A writer in short lives that each end at a chosen point, and then one that closes."""

    def begin(self) -> None:
        self.claims = Claims()
        self.told = [self.claims]

    def finish(self) -> Outcome:
        """The next life continues and closes the store."""
        last = live(self.store, self.claims, self.index, operations=5)
        assert last.code == 0, last.errors
        return self.claims.compare(self.store)


class AtAPlace(_Writer):
    """Killed at a named place, each store at the next one, when it gets there for the n-th time."""

    def begin(self) -> None:
        """Let there be messages, unless it is about topics: those are made once, at first."""
        super().begin()
        if self.index >= len(PLACES):
            raise Over
        self._place = PLACES[self.index]
        if not self._place.startswith("topics."):
            live(self.store, self.claims, 0, operations=40, failpoint="put.after_write:5")

    def round(self, number: int, seed: int) -> bool:
        """A life that ends there, if it gets there so often."""
        times = COUNTS[number % len(COUNTS)]
        self.done.append(f"{self._place}:{times}")
        ending = live(self.store, self.claims, times, operations=40, failpoint=self.done[-1])
        assert ending.code in (0, -9), ending.errors
        settle(self.store)
        self.tally.add(self.claims.compare(self.store))
        return ending.code != 0

    def finish(self) -> Outcome:
        assert self.tally.faults, f"nothing gets to {self._place}"
        return super().finish()


@dataclass(kw_only=True)
class AtACall(_Writer):
    """Killed at, or failed by, the k-th call of the kernel, until it gets through without.

    Attributes:
        call: of the kernel.
        fault: what strace injects.
    """

    call: str
    fault: str = KILL

    def round(self, number: int, seed: int) -> bool:
        self.done.append(f"{self.call} {number + 1}")
        ending, fired = injected(self.store, self.claims, number + 1, self.call, self.fault)
        assert "Traceback" not in ending.errors, ending.errors
        if not fired:
            assert ending.code == 0, ending.errors
            raise Over
        return True


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
