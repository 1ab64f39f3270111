"""Programs of this repository, started as a user starts them, and killed as a machine fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pyspark

from tests.support.processes.jvm import quick_java
from tests.support.processes.surroundings import path_with_quick_workers
from tests.support.waiting import eventually

__all__ = ["ROOT", "SPARK_SUBMIT", "environment", "kill_when", "submit"]

ROOT = Path(__file__).resolve().parents[2]
SPARK_SUBMIT = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
_PATIENCE = 300.0
"""Seconds: a JVM starts meanwhile, on a machine that may be busy."""


def environment() -> dict[str, str]:
    """Return the variables that `make` sets, without this process's Spark, and for a quick JVM."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    return {
        **ours,
        **quick_java(),
        "PYTHONPATH": path_with_quick_workers(),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def kill_when(condition: Callable[[], bool], module: str, arguments: Sequence[str]) -> None:
    """Start a program, and kill it as soon as a condition holds: the driver, its JVM and all.

    Args:
        condition: the program must not end by itself before this holds.
        module: the program's.
        arguments: its command line.
    """
    running = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT, env=environment(), start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def holds() -> bool:
        assert running.poll() is None, "the program has ended"
        return condition()

    try:
        eventually(holds, _PATIENCE)
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def submit(job: str, arguments: Sequence[str], folder: Path) -> str:
    """Run a job by spark-submit until it ends, and return its output.

    Args:
        job: the name of its file in `jobs/`.
        arguments: its command line.
        folder: where it runs.
    """
    done = subprocess.run(
        [SPARK_SUBMIT, "--master", "local[2]", str(ROOT / "jobs" / f"{job}.py"), *arguments],
        cwd=folder, env=environment(), check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
