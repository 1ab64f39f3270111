"""The Python that runs Spark's workers, and the packages that it needs.

Without PYSPARK_PYTHON, Spark runs `python3`. For a program in a virtual environment that is
another Python.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Final

from rmqstore_spark.errors import InstallationError

__all__ = ["check_packages", "require_spark", "use_this_python"]

_PACKAGES: Final = ("fsspec", "isal", "lz4", "msgspec", "numpy", "pyarrow", "zstandard")


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
        InstallationError: a package is missing.
    """
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise InstallationError(
            f"Spark runs its workers with {sys.executable}, and that Python has no "
            f"{', '.join(missing)}. Before Spark starts, set PYSPARK_PYTHON to the Python that "
            "rmqstore-spark is installed in, on the driver and on every executor."
        )


def require_spark() -> None:
    """Check that this Python has pyspark, which comes with an extra.

    Raises:
        InstallationError: pyspark is missing.
    """
    if find_spec("pyspark") is None:
        raise InstallationError(
            f"{sys.executable} has no pyspark. Install it with rmqstore-spark: "
            "pip install 'rmqstore-spark[spark]'"
        )
