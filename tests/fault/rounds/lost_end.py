"""A store whose log has lost its end, in each form."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.reader import Store
from rmqstore_spark.verify import verify
from tests.fault.claims import Claims, Outcome, errors_in
from tests.fault.messages import read_numbers
from tests.fault.rounds.driver import Scene
from tests.fault.rounds.life import SMALL, configured, live, settle
from tests.fault.rounds.lives import LONGEST_LIFE_S

_OPERATIONS: Final = 12
"""Of a life that ends with a clean close."""

Form = Callable[[list[Path], random.Random], object]
"""Damages the segments of a log, in their order."""


def _missing(log: list[Path], drawn: random.Random) -> None:
    for path in log[-drawn.choice((1, 1, 2, 3)) :]:
        path.unlink()


def _empty(log: list[Path], drawn: random.Random) -> None:
    del drawn
    log[-1].write_bytes(b"")


def _cut(log: list[Path], drawn: random.Random) -> None:
    data = log[-1].read_bytes()
    log[-1].write_bytes(data[: drawn.randrange(len(data.rstrip(b"\0")) + 1)])


def _zeroed(log: list[Path], drawn: random.Random) -> None:
    size = log[-1].stat().st_size
    begin = drawn.choice((0, 0, drawn.randrange(size)))
    log[-1].write_bytes(log[-1].read_bytes()[:begin] + bytes(size - begin))


def _other_bytes(log: list[Path], drawn: random.Random) -> None:
    log[-1].write_bytes(drawn.randbytes(log[-1].stat().st_size))


def _older_copy(log: list[Path], drawn: random.Random) -> None:
    log[-1].write_bytes(drawn.choice(log[:-1] or log).read_bytes())


_FORMS: Final[dict[str, Form]] = {
    "missing": _missing,
    "empty": _empty,
    "cut": _cut,
    "zeroed": _zeroed,
    "other bytes": _other_bytes,
    "an older copy": _older_copy,
}


class LostEnds(Scene):
    """The end of the log is damaged, in each form in turn, after a kill or a clean close.

    Either the store opens by itself with everything that was acknowledged (under ASYNC_FLUSH: that
    was on disk), or it refuses. Then it says what it misses, `verify` finds that too, `--cut` opens
    a copy and says what that gives up, and with the files restored everything is there.
    """

    def begin(self) -> None:
        """Every second store is flushed at each put."""
        self._claims = Claims()
        self.told = [self._claims]
        self._is_async = self.index % 2 == 0
        flush = "ASYNC_FLUSH" if self._is_async else "SYNC_FLUSH"
        self._settings = (*SMALL, f"flushDiskType={flush}")

    def round(self, number: int, seed: int) -> bool:
        drawn, store = random.Random(seed), self.store
        is_killed = drawn.random() < 0.7
        live(
            store, self._claims, seed, settings=self._settings,
            operations=None if is_killed else _OPERATIONS,
            kill_after_s=LONGEST_LIFE_S if is_killed else None,
        )  # fmt: skip
        log = sorted(path for path in store.glob("commitlog/*") if path.name.isdigit())
        if not (self._claims.operations and log):
            return False
        whole = Path(shutil.copytree(store, self.folder / "whole"))
        name, damage = list(_FORMS.items())[number % len(_FORMS)]
        self.done.append(f"{name} after {'a kill' if is_killed else 'a close'}")
        damage(log, drawn)
        if self._opens_or_says_why():
            self.tally.add(self._claims.compare(store, lost_tail=is_killed and self._is_async))
        else:
            shutil.rmtree(store)
            whole.rename(store)
            settle(store, self._settings)
            self.tally.add(self._claims.compare(store))
        shutil.rmtree(whole, ignore_errors=True)
        return True

    def finish(self) -> Outcome:
        return Outcome(0, 0, ())

    def _opens_or_says_why(self) -> bool:
        """Open a damaged store; return whether that went well."""
        with Store.open(self.store) as reader:
            is_found = not verify(reader).ok
        try:
            settle(self.store, self._settings)
        except CorruptStoreError as error:
            text = str(error)
            if not ("Restore" in text and "recover --cut" in text and "/commitlog" in text):
                self.tally.others += (f"no remedy: {text}",)
            if not is_found:
                self.tally.others += (f"verify found nothing: {text}",)
            self._cut_away()
            return False
        return True

    def _cut_away(self) -> None:
        """Open the store without its end: that is told, nothing is doubled, and it opens again."""
        with StoreWriter.open(self.store, configured(self._settings), cut=True) as writer:
            lost = writer.recovery.lost
        # A segment in which nothing was stored yet, and which is a copy of another, has no entries.
        if lost is None:
            self.tally.others += ("--cut does not say what it gives up",)
        (self.store / "abort").touch()
        settle(self.store, self._settings)
        with Store.open(self.store) as reader:
            self.tally.others += tuple(errors_in(reader))
            numbers = [n for found in read_numbers(reader).values() for n in found]
        self.tally.doubled += len(numbers) - len(set(numbers))
