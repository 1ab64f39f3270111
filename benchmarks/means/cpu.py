"""CPU that this process, and those it started, have taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import psutil

__all__ = ["Cpu", "measured_cpu"]

_CORES: Final = 2
_KINDS: Final = ("java", "python")


class Cpu(dict[str, float]):
    """Seconds of CPU by kind of process: `java`, `python`, and that of a server."""

    def add(self, other: Cpu) -> None:
        """Add what was taken another time."""
        for kind, spent in other.items():
            self[kind] = self.get(kind, 0.0) + spent

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing: a process that nobody waited for takes its seconds along."""
        return all(spent >= 0 for spent in self.values())

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
def measured_cpu(server: int | None = None, name: str = "store") -> Iterator[Cpu]:
    """Measure a block of code; the result is complete when the block ends.

    Args:
        server: process number of the store process, or of another server.
        name: its kind.
    """
    cpu, before = Cpu(), _spent(server, name)
    yield cpu
    after = _spent(server, name)
    cpu.update({kind: seconds - before[kind] for kind, seconds in after.items()})


def _spent(server: int | None, name: str) -> dict[str, float]:
    """Seconds of CPU of all processes, with those that have ended and were waited for."""
    spent = dict.fromkeys((*_KINDS, name), 0.0)
    here = psutil.Process()
    for process in (here, *here.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times, is_java = process.cpu_times(), "java" in process.name()
            kind = name if process.pid == server else "java" if is_java else "python"
            spent[kind] += times.user + times.system
            spent["python" if is_java else kind] += times.children_user + times.children_system
    return spent
