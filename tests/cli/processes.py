"""Runs the command as a separate process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.processes import forked

__all__ = ["COMMAND", "PATIENCE", "ROOT", "run", "run_anew"]

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "rmqstore_spark.cli"]
PATIENCE = 60


def run_anew(*args: object, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """Run the command until it ends, in a Python that does all its imports: see `forked`."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        [*COMMAND, *map(str, args)], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE,
        check=False, **kwargs,
    )  # fmt: skip
    return done


def run(*args: object, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """Run the command until it ends."""
    return forked.run([*COMMAND, *map(str, args)], cwd=ROOT, timeout=PATIENCE, **kwargs)
