"""Run the essential tests on the older versions of Spark that are supported.

    python -m tools.spark_versions [ARGUMENT OF PYTEST ...]

Each version has an environment in `.venv-spark`, which is made once: it holds the newest patch of
that pyspark, and sees the packages of the environment that this runs in behind it. So the tests of
all versions differ in nothing but Spark.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Final

__all__ = ["FOLDER", "VERSIONS", "environment_of", "main"]

VERSIONS: Final = ("4.0", "4.1", "4.2")
"""The newest version is the one that all tests run on."""

FOLDER: Final = Path(__file__).resolve().parents[1] / ".venv-spark"

_MARK: Final = "spark_versions"
_OWN_PACKAGES: Final = "lib/python{}.{}/site-packages".format(*sys.version_info)
# Older versions leave sockets to the garbage collector, which the newest one closes.
_ALLOWED: Final = (
    "-W",
    "ignore::ResourceWarning",
    "-W",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


def environment_of(version: str) -> Path:
    """Return the Python of a version's environment, which is made if it does not exist.

    Raises:
        subprocess.CalledProcessError: pip could not install pyspark; it has said why.
    """
    folder = FOLDER / version
    python = folder / "bin" / "python"
    made = folder / "installed"
    # Whatever makes the environment another one: the Python, and the packages behind its own.
    state = f"{sys.version}\n{sysconfig.get_path('purelib')}\n"
    if made.exists() and made.read_text(encoding="utf-8") == state:
        return python
    _say(f"Installing pyspark {version} into {FOLDER.name}/{version} (400 MB) ...")
    venv.create(folder, clear=True, symlinks=True)
    # Before the other packages can be seen: pip would take their pyspark for this one's.
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-qq"]
    subprocess.run([*pip, f"pyspark~={version}.0"], check=True)
    behind = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (folder / _OWN_PACKAGES / "behind.pth").write_text(behind, encoding="utf-8")
    made.write_text(state, encoding="utf-8")
    return python


def main(arguments: list[str]) -> int:
    """Run the tests on each version, and return the exit code."""
    failed = []
    for version in VERSIONS:
        python = str(environment_of(version))
        full = subprocess.run(
            [python, "-c", "import pyspark; print(pyspark.__version__)"],
            capture_output=True, check=True, text=True,
        ).stdout.strip()  # fmt: skip
        if not re.match(rf"{re.escape(version)}\.", full):
            raise RuntimeError(f"{python} has pyspark {full}, not {version}")
        _say(f"Spark {full}:")
        command = [python, "-m", "pytest", "-m", _MARK, *_ALLOWED, *arguments]
        environment = {**os.environ, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
        if subprocess.run(command, env=environment, check=False).returncode:
            failed.append(full)
    if failed:
        _say(f"Failed on Spark {', '.join(failed)}")
    return 1 if failed else 0


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
