"""The Python that runs Spark's workers, the packages that it needs, and the Spark that it has.

Without PYSPARK_PYTHON, Spark runs `python3`. For a program in a virtual environment that is
another Python.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import Final

from rmqstore_spark.errors import InstallationError

_log = logging.getLogger("rmqstore_spark")

_PACKAGES: Final = {
    "fsspec": (2024, 2),
    "isal": (1, 5),
    "lz4": (4, 3),
    "msgspec": (0, 19),
    "numpy": (1, 26),
    "pyarrow": (18,),
    "zstandard": (0, 22),
}
"""What Spark's workers need, with the oldest versions, as pyproject.toml has them."""

_OLDEST: Final = (4, 0)
_NEWEST: Final = (4, 3)
"""The newest Spark that the tests have run on."""


def use_this_python() -> None:
    """Make Spark run its workers with this Python, unless the user has chosen one.

    Spark reads the variable when its JVM starts. A program started by spark-submit is left alone:
    its JVM already runs, and its workers may run on machines without a Python at this path.
    """
    if sys.executable and "PYSPARK_GATEWAY_PORT" not in os.environ:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def check_packages() -> None:
    """Check that this Python has the packages that reading and writing need.

    Raises:
        InstallationError: a package is missing, or too old.
    """
    specs = {name: find_spec(name) for name in _PACKAGES}
    missing = [name for name, spec in specs.items() if spec is None]
    faults = [f"no {', '.join(missing)}"] if missing else []
    for name, spec in specs.items():
        found = max(_installed_versions(name, spec), default=_PACKAGES[name]) if spec else None
        if found is not None and found < _PACKAGES[name]:
            faults.append(f"{name} {_text(found)}, where {_text(_PACKAGES[name])} is needed")
    if faults:
        raise InstallationError(
            f"Spark runs its workers with {sys.executable}, and that Python has "
            f"{'; and '.join(faults)}. Install rmqstore-spark there, with its dependencies, or "
            "set PYSPARK_PYTHON to the Python that it is installed in before Spark starts: on the "
            "driver and on every executor."
        )


def _installed_versions(name: str, spec: ModuleSpec) -> Iterator[tuple[int, ...]]:
    """Yield the versions that the folder of a package names; more than one after a bad upgrade.

    Loading `importlib.metadata` for this takes longer than the whole check.
    """
    for package in spec.submodule_search_locations or ():
        with suppress(OSError):
            for entry in os.listdir(os.path.dirname(package)):
                found = re.fullmatch(rf"{name}-(\d+(?:\.\d+)*).*\.dist-info", entry)
                if found:
                    yield tuple(map(int, found[1].split(".")))


def require_spark() -> None:
    """Check that this Python has pyspark, which comes with an extra, and not too old a one.

    Raises:
        InstallationError: pyspark is missing, or knows no data sources that are written in Python.
    """
    if find_spec("pyspark") is None:
        raise InstallationError(
            f"{sys.executable} has no pyspark. Install it with rmqstore-spark: "
            "pip install 'rmqstore-spark[spark]'"
        )
    if spark_version() < _OLDEST:
        raise InstallationError(
            f"rmqstore-spark needs Spark {_text(_OLDEST)} to {_text(_NEWEST)}, and the pyspark of "
            f"{sys.executable} is {_full_version()}. Run the query on a newer Spark; where this "
            "Python brings its own, install one: pip install 'rmqstore-spark[spark]'"
        )


def check_spark() -> None:
    """Check that this Spark is one that the source was written for.

    Raises:
        InstallationError: it is too old.
    """
    require_spark()
    if spark_version() > _NEWEST:
        _log.warning(
            "rmqstore-spark was tested with Spark %s to %s, and this is %s. If something fails, "
            "look for a newer rmqstore-spark.",
            _text(_OLDEST),
            _text(_NEWEST),
            _full_version(),
        )


def spark_version() -> tuple[int, int]:
    """Return the major and minor version of this Python's pyspark."""
    found = re.match(r"(\d+)\.(\d+)", _full_version())
    return (int(found[1]), int(found[2])) if found else _NEWEST


def _full_version() -> str:
    import pyspark

    return str(pyspark.__version__)


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
