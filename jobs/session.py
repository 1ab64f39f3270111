"""The Spark session of a job, however it was started."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CONF", "start_session"]

CONF = Path(__file__).resolve().parents[1] / "conf"
"""The settings that this repository brings."""


def start_session(app_name: str) -> SparkSession:
    """Give the session that spark-submit set up, or a local one with the settings of `conf/`.

    Executors need `rmqstore_spark` installed, but not this package: its functions travel with the
    tasks.
    """
    # Workers start `python3` otherwise, which need not have this environment's packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if "SPARK_HOME" not in os.environ and CONF.is_dir():
        os.environ.setdefault("SPARK_CONF_DIR", str(CONF))

    from pyspark import cloudpickle
    from pyspark.sql import SparkSession

    cloudpickle.register_pickle_by_value(jobs)  # type: ignore[no-untyped-call]
    # Dates and times are UTC in all that the jobs write and print.
    builder = SparkSession.builder.appName(app_name).config("spark.sql.session.timeZone", "UTC")
    return builder.getOrCreate()
