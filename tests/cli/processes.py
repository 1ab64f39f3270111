"""Runs the command as a separate process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

__all__ = ["COMMAND", "PATIENCE", "ROOT", "run"]

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "rmqstore_spark.cli"]
PATIENCE = 60


def run(*args: object, **kwargs: object) -> subprocess.CompletedProcess[str]:
    """Run the command until it ends."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        [*COMMAND, *map(str, args)], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE,
        **kwargs,  # type: ignore[call-overload]
    )  # fmt: skip
    return done
