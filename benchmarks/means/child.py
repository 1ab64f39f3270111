"""Runs one measurement in a process of its own, where nothing else was loaded or allocated."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

__all__ = ["in_child"]

ROOT: Final = Path(__file__).resolve().parents[2]
_MARK: Final = "result: "


def in_child(function: str, *, plain: bool = False, **arguments: object) -> Any:
    """Call a function of this package in another process.

    Args:
        function: as `benchmarks.engine.decode:measure`; what it takes and gives must be JSON.
        plain: let the NumPy kernel do the work of the compiled one there.
    """
    environment = dict(os.environ)
    if plain:
        environment["RMQSTORE_KERNEL"] = "plain"
    command = [sys.executable, "-m", "benchmarks.means.child", function, json.dumps(arguments)]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    last = done.stdout.splitlines()[-1]
    return json.loads(last.removeprefix(_MARK))


if __name__ == "__main__":
    module, _, name = sys.argv[1].partition(":")
    result = getattr(importlib.import_module(module), name)(**json.loads(sys.argv[2]))
    print(_MARK + json.dumps(result))
