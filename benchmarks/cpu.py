"""CPU that this process, and those it started, have taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import psutil

__all__ = ["Cpu", "measured_cpu"]

_CORES: Final = 2
_KINDS: Final = ("java", "python", "store")


class Cpu(dict[str, float]):
    """Seconds of CPU by kind of process: `java`, `python`, and `store` for a store process."""

    def add(self, other: Cpu) -> None:
        """Add what was taken another time."""
        for kind, spent in other.items():
            self[kind] = self.get(kind, 0.0) + spent

    @property
    def seconds(self) -> float:
        """Of all processes."""
        return sum(self.values())

    def bound(self, count: int) -> float:
        """Return how many items a second the cores have time for, if `count` took this."""
        return count * _CORES / self.seconds

    def of_each(self, count: int) -> str:
        """Return what one of `count` items took, in microseconds."""
        each = (f"{kind} {spent / count * 1e6:.2f}" for kind, spent in self.items() if spent)
        return f"{self.seconds / count * 1e6:.2f} us ({', '.join(each)})"


@contextmanager
def measured_cpu(store: int | None = None) -> Iterator[Cpu]:
    """Measure a block of code; the result is complete when the block ends.

    Args:
        store: process number of the store process.
    """
    cpu, before = Cpu(), _spent(store)
    yield cpu
    cpu.update({kind: seconds - before[kind] for kind, seconds in _spent(store).items()})


def _spent(store: int | None) -> dict[str, float]:
    """Seconds of CPU of all processes, with those that have ended and were waited for."""
    spent = dict.fromkeys(_KINDS, 0.0)
    here = psutil.Process()
    for process in (here, *here.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times, is_java = process.cpu_times(), "java" in process.name()
            kind = "store" if process.pid == store else "java" if is_java else "python"
            spent[kind] += times.user + times.system
            spent["python" if is_java else kind] += times.children_user + times.children_system
    return spent
