"""What a writer asked of the kernel, in the order in which that was done."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.waiting import eventually

_BEGUN: Final = re.compile(r"^(\d+) +(\w+)\((.*?)(?: <unfinished \.\.\.>|\) += (-?\d+).*)$")
_RESUMED: Final = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>.*\) += (-?\d+)")


def why_no_strace() -> str:
    """Why this machine cannot trace a process; empty if it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "strace may not trace here"


class Call(NamedTuple):
    """A call of the kernel that succeeded.

    Attributes:
        name: of the call.
        arguments: as strace -y writes them: descriptors with their paths.
        begun: number of the line at which it began: what it flushed was written before that.
    """

    name: str
    arguments: str
    begun: int


def calls(log: Path) -> Iterator[Call]:
    """The calls of a log of `strace -f -y`, each when it had returned."""
    waiting: dict[str, Call] = {}
    for number, line in enumerate(log.read_text(errors="replace").splitlines()):
        if begun := _BEGUN.match(line):
            thread, name, arguments, result = begun.groups()
            call = Call(name, arguments, number)
            if result is None:
                waiting[thread] = call
            elif int(result) >= 0:
                yield call
        elif (resumed := _RESUMED.match(line)) and resumed[1] in waiting:
            call = waiting.pop(resumed[1])
            if int(resumed[3]) >= 0:
                yield call


def _is_traced(pid: int) -> bool:
    """Whether all threads of a process are traced."""
    return all(
        "TracerPid:\t0\n" not in (task / "status").read_text()
        for task in Path(f"/proc/{pid}/task").iterdir()
    )


@contextmanager
def injecting(pid: int, log: Path, calls: str, fault: str) -> Iterator[None]:
    """Let strace do something to a process at each of some calls, from now on.

    Args:
        pid: of the process.
        log: where strace writes.
        calls: of the kernel, with commas.
        fault: what strace injects.
    """
    command = ["strace", "-f", "-qq", "-o", str(log), "-p", str(pid)]
    tracer = subprocess.Popen([*command, "-e", f"trace={calls}", "-e", f"inject={calls}:{fault}"])
    try:
        eventually(lambda: _is_traced(pid))
        yield
    finally:
        tracer.terminate()
        tracer.wait()
