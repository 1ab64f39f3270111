"""Runs the command as a separate process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tests.support.processes import forked

__all__ = ["COMMAND", "HEAVY", "PATIENCE", "ROOT", "modules_of", "run", "run_anew"]

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "rmqstore_spark.cli"]
PATIENCE = 60
HEAVY: Final = frozenset(("fsspec", "numpy", "pyarrow", "pyspark", "rich", "rmqstore_spark.engine"))
"""What takes long to import."""


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


def modules_of(*args: object) -> tuple[list[str], set[str]]:
    """Return what a command prints, and all modules that its process has imported in the end."""
    program = (
        "import sys\n"
        "from rmqstore_spark.cli import main\n"
        f"sys.argv = ['rmqstore', *{[str(arg) for arg in args]!r}]\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print(*sorted(name for name, module in sys.modules.items() if module))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    *printed, names = done.stdout.splitlines()
    return printed, set(names.split())
