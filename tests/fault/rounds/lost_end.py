"""Rounds in which the end of a store's log is damaged, after a kill or a clean close.

Either the store opens by itself with everything that was acknowledged (under ASYNC_FLUSH: that was
on disk), or it refuses. Then it says what it misses, `verify` finds that too, `--cut` opens a copy
and says what that gives up, and with the files restored everything is there.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.reader.store import Store
from rmqstore_spark.verify import verify
from tests.fault.claims import Claims
from tests.fault.messages import read_numbers
from tests.fault.rounds.life import SMALL, live, settle
from tests.fault.rounds.writer import LONGEST_LIFE_S, Tally

__all__ = ["FORMS", "lost_ends"]

_ROUNDS_PER_STORE: Final = 10
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


FORMS: Final[dict[str, Form]] = {
    "missing": _missing,
    "empty": _empty,
    "cut": _cut,
    "zeroed": _zeroed,
    "other bytes": _other_bytes,
    "an older copy": _older_copy,
}


def lost_ends(folder: Path, rounds: int, *, first_seed: int = 0) -> Tally:
    """Damage the end of a store's log, in each form in turn."""
    tally, forms = Tally(), list(FORMS.values())
    for begin in range(0, rounds, _ROUNDS_PER_STORE):
        flush = ("ASYNC_FLUSH", "SYNC_FLUSH")[begin // _ROUNDS_PER_STORE % 2]
        settings = (*SMALL, f"flushDiskType={flush}")
        place, claims = folder / f"lost-end-{begin}", Claims()
        store = place / "store"
        for number in range(begin, min(begin + _ROUNDS_PER_STORE, rounds)):
            seed = first_seed + number
            drawn = random.Random(seed)
            is_killed = drawn.random() < 0.7
            live(
                store, claims, seed, settings=settings,
                operations=None if is_killed else _OPERATIONS,
                kill_after_s=LONGEST_LIFE_S if is_killed else None,
            )  # fmt: skip
            tally.rounds += 1
            log = _segments(store)
            if not (claims.operations and log):
                continue
            whole = Path(shutil.copytree(store, place / "whole"))
            forms[number % len(forms)](log, drawn)
            tally.faults += 1
            if not _opens_or_says_why(store, claims, settings, tally, lost_tail=is_killed):
                shutil.rmtree(store)
                whole.rename(store)
                settle(store, settings)
                tally.add(claims.compare(store))
            shutil.rmtree(whole, ignore_errors=True)
        tally.acknowledged += claims.acknowledged
    return tally


def _segments(store: Path) -> list[Path]:
    folder = store / "commitlog"
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.name.isdigit())


def _opens_or_says_why(
    store: Path, claims: Claims, settings: tuple[str, ...], tally: Tally, *, lost_tail: bool
) -> bool:
    """Open a damaged store; return whether that went well, and compare what it holds then."""
    with Store.open(store) as reader:
        is_found = not verify(reader).ok
    try:
        settle(store, settings)
    except CorruptStoreError as error:
        text = str(error)
        if not ("Restore" in text and "recover --cut" in text and "/commitlog" in text):
            tally.others += (f"no remedy: {text}",)
        if not is_found:
            tally.others += (f"verify found nothing: {text}",)
        _cut_away(store, settings, tally)
        return False
    is_async = "flushDiskType=ASYNC_FLUSH" in settings
    tally.add(claims.compare(store, lost_tail=lost_tail and is_async))
    return True


def _cut_away(store: Path, settings: tuple[str, ...], tally: Tally) -> None:
    """Open the store without its end: that is told, nothing is doubled, and it opens again."""
    config = StoreConfig().with_overrides(dict(pair.split("=", 1) for pair in settings))
    with StoreWriter.open(store, config, cut=True) as writer:
        lost = writer.recovery.lost
    # A segment in which nothing was stored yet, and which is a copy of another one, has no entries.
    if lost is None:
        tally.others += ("--cut does not say what it gives up",)
    (store / "abort").touch()
    settle(store, settings)
    with Store.open(store) as reader:
        tally.others += tuple(
            str(one) for one in verify(reader).problems if one.severity == "error"
        )
        numbers = [n for found in read_numbers(reader).values() for n in found]
    tally.doubled += len(numbers) - len(set(numbers))
