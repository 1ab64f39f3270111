"""One life of a process that says what it does: started, killed at some time, and what it said."""

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

from rmqstore_spark.engine import StoreConfig, StoreWriter
from tests.fault.claims import Claims
from tests.support.processes.forked import start
from tests.support.processes.surroundings import path_without_pandas

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
        errors: what it wrote on stderr.
        refusal: status and reason of the put that was refused, if one was.
        lines: what it said.
    """

    code: int
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
        kill_after_s: see `run_life`.
        operations: it closes the store after so many.
        commits: share of the operations that are commits, not puts.
        mutant: see `child.MUTANTS`.
        failpoint: see `rmqstore_spark.engine.failpoints`.
        prefix: of the command, as `strace`.
        environment: variables beside those of this process.
    """
    command = [*prefix, sys.executable, "-m", "tests.fault.child", str(store)]
    command += [str(claims.next_number), "0", str(seed), *settings, "--commits", str(commits)]
    again = claims.unfinished_commit
    if again is not None:
        command += ["--replay", str(again.first), str(again.count)]
    if operations is not None:
        command += ["--operations", str(operations)]
    if mutant:
        command += ["--mutant", mutant]
    ending = run_life(
        command, seed, kill_after_s=kill_after_s, failpoint=failpoint, environment=environment
    )
    for line in ending.lines:
        what, *words = line.split()
        if what == "refused":
            ending.refusal = line.partition(" ")[2]
        elif what in ("begin", "done", "durable"):
            claims.take(what, words)
    return ending


def run_life(
    command: Sequence[str],
    seed: int,
    *,
    kill_after_s: float | None = None,
    failpoint: str = "",
    environment: Mapping[str, str] | None = None,
) -> Ending:
    """Let a process live until it is killed, or has ended.

    Args:
        command: its first line of output says that it has begun its work.
        seed: of when it is killed.
        kill_after_s: SIGKILL at most so many seconds after the store is open, or, more rarely,
            after the start of the process; and not before it has done some of its work, so that a
            slow machine kills no idle process only. When is drawn from the seed.
        failpoint, environment: see `live`.
    """
    process = start(  # unbuffered: a line that is read leaves the others to `communicate`
        command,
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={
            **os.environ,
            # A limit on files must not cut those that Python keeps beside the sources.
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": path_without_pandas(),
            "RMQSTORE_FAILPOINT": failpoint,
            **(environment or {}),
        },
    )
    assert process.stdout is not None
    begun, seconds = b"", float(_PATIENCE_S)
    if kill_after_s is not None:
        drawn = random.Random(seed)
        if drawn.random() >= _KILLED_EARLY:  # else now and then while it opens the store
            begun = b"".join(process.stdout.readline() for _ in range(drawn.choice(_WORK)))
        seconds = drawn.uniform(0, kill_after_s)
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        assert kill_after_s is not None, f"still at it after {seconds} s: {errors.decode()}"
    return Ending(process.wait(), errors.decode(), "", (begun + output).decode().splitlines())


def configured(settings: Sequence[str]) -> StoreConfig:
    """The configuration that has some settings, `key=value`."""
    return StoreConfig().with_overrides(dict(pair.split("=", 1) for pair in settings))


def settle(store: Path, settings: Sequence[str] = SMALL) -> None:
    """Open a store, which recovers it, and close it."""
    StoreWriter.open(store, configured(settings)).close()
