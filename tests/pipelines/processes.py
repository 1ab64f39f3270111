"""Programs of this repository, started as a user starts them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyspark

from tests.support.processes.jvm import QUICK_JVM
from tools.java import find_java

__all__ = ["ROOT", "SPARK_SUBMIT", "environment"]

ROOT = Path(__file__).resolve().parents[2]
SPARK_SUBMIT = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")


def environment() -> dict[str, str]:
    """Return the variables that `make` sets, without this process's Spark, and for a quick JVM."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    return {
        **ours,
        "JAVA_HOME": str(find_java()),
        "SPARK_SUBMIT_OPTS": QUICK_JVM,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
