"""One life of a writer: started, killed at some time, and what it had said until then."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.store import StoreWriter
from tests.fault.claims import Claims
from tests.support.processes.surroundings import path_without_pandas

__all__ = ["SMALL", "Ending", "live", "run", "settle"]

SMALL: Final = (
    "mappedFileSizeCommitLog=262144",
    "mappedFileSizeConsumeQueue=4000",
    "maxHashSlotNum=500",
    "maxIndexNum=3000",
    "stagingMemoryBytes=140000",
)
"""Files so small that a second of writing fills many. Of the largest batches, one stage is in
memory and the other in files."""

_ROOT: Final = Path(__file__).parents[3]
_PATIENCE_S: Final = 120
_KILLED_EARLY: Final = 0.15
_WORK: Final = (1, 4, 40)
"""Lines of output after which a process may be killed: the first says that the store is open."""


@dataclass
class Ending:
    """How a life ended.

    Attributes:
        code: exit code; negative for the signal that killed it.
        ready: whether the store had been opened.
        errors: what it wrote on stderr.
        refusal: status and reason of the put that was refused, if one was.
    """

    code: int
    ready: bool = False
    errors: str = ""
    refusal: str = ""
    lines: list[str] = field(default_factory=list)


def live(
    store: Path,
    claims: Claims,
    seed: int,
    *,
    settings: Sequence[str] = SMALL,
    kill_after_s: float | None = None,
    operations: int | None = None,
    commits: float = 0.3,
    mutant: str = "",
    failpoint: str = "",
    prefix: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Ending:
    """Let a writer live: until it is killed, has failed, or has done all its operations.

    Args:
        store: the store directory.
        claims: what was done with the store before; what this life does is added.
        seed: of the operations.
        settings: `key=value` of the store's configuration.
        kill_after_s: SIGKILL at most so many seconds after the store is open, or, more rarely,
            after the start of the process; and not before it has done some of its work, so that a
            slow machine kills no idle process only. When is drawn from the seed.
        operations: it closes the store after so many.
        commits: share of the operations that are commits, not puts.
        mutant: see `child.MUTANTS`.
        failpoint: see `writer.failpoints`.
        prefix: of the command, as `strace`.
    """
    command = [*prefix, sys.executable, "-m", "tests.fault.child", str(store)]
    command += [str(claims.next_number), str(seed), *settings, "--commits", str(commits)]
    again = claims.unfinished_commit
    if again is not None:
        command += ["--replay", str(again.first), str(again.count)]
    if operations is not None:
        command += ["--operations", str(operations)]
    if mutant:
        command += ["--mutant", mutant]
    ending = run(
        command, seed, kill_after_s=kill_after_s, failpoint=failpoint, environment=environment
    )
    for line in ending.lines:
        _take(line, claims, ending)
    return ending


def run(
    command: Sequence[str],
    seed: int,
    *,
    kill_after_s: float | None = None,
    failpoint: str = "",
    environment: Mapping[str, str] | None = None,
) -> Ending:
    """Let a process live that says what it does: until it is killed, or has ended.

    Args:
        command: its first line of output says that it has begun its work.
        seed, kill_after_s, failpoint: see `live`.
        environment: variables beside those of this process.
    """
    process = subprocess.Popen(
        command,
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # a line that is read leaves the others to `communicate`
        env={
            **os.environ,
            # A limit on files must not cut those that Python keeps beside the sources.
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": path_without_pandas(),
            "RMQSTORE_FAILPOINT": failpoint,
            **(environment or {}),
        },
        start_new_session=True,
    )
    if kill_after_s is None:
        output, errors = _await_end(process, _PATIENCE_S)
    else:
        drawn = random.Random(seed)
        # Now and then while it opens the store.
        begun = b"" if drawn.random() < _KILLED_EARLY else _lines(process, drawn.choice(_WORK))
        output, errors = _kill(process, drawn.uniform(0, kill_after_s))
        output = begun + output
    return Ending(process.returncode, errors=errors.decode(), lines=output.decode().splitlines())


def _lines(process: subprocess.Popen[bytes], count: int) -> bytes:
    """The first lines that a process writes; fewer if it ends before."""
    assert process.stdout is not None
    return b"".join(process.stdout.readline() for _ in range(count))


def _kill(process: subprocess.Popen[bytes], after_s: float) -> tuple[bytes, bytes]:
    try:
        return process.communicate(timeout=after_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()


def _await_end(process: subprocess.Popen[bytes], patience_s: float) -> tuple[bytes, bytes]:
    try:
        return process.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        _, errors = _kill(process, 0)
        raise AssertionError(f"still at it after {patience_s} s: {errors.decode()}") from None


def _take(line: str, claims: Claims, ending: Ending) -> None:
    what, _, rest = line.partition(" ")
    if what == "ready":
        ending.ready = True
    elif what == "refused":
        ending.refusal = rest
    elif what == "begin":
        kind, first, count = rest.split()
        claims.begin(kind, int(first), int(count))
    elif what == "done":
        kind, first = rest.split()
        claims.done(kind, int(first))
    elif what == "durable":
        claims.durable(int(rest))


def settle(store: Path, settings: Sequence[str] = SMALL) -> None:
    """Open a store, which recovers it, and close it."""
    config = StoreConfig().with_overrides(dict(pair.split("=", 1) for pair in settings))
    StoreWriter.open(store, config).close()
