"""Create the Spark session of a job, however the job was started."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rmqstore_spark.base.workers import use_this_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF = Path(__file__).resolve().parents[2] / "conf"
"""The settings of the repository, if the package is used from there."""


@contextmanager
def session(app_name: str) -> Iterator[SparkSession]:
    """Yield the session of `start_session`, and stop it at the end."""
    spark = start_session(app_name)
    try:
        yield spark
    finally:
        spark.stop()


def start_session(app_name: str) -> SparkSession:
    """Return the session of spark-submit, or a local one with the settings of `conf/`.

    Executors need `rmqstore_spark` installed.
    """
    prepare_environment()
    from pyspark.sql import SparkSession

    # Dates and times are UTC in everything that the jobs write and print.
    builder = SparkSession.builder.appName(app_name).config("spark.sql.session.timeZone", "UTC")
    return builder.getOrCreate()


def prepare_environment() -> None:
    """Set the variables that Spark reads at its start, unless the user has set them."""
    if "SPARK_HOME" not in os.environ and CONF.is_dir():
        os.environ.setdefault("SPARK_CONF_DIR", str(CONF))
    if _master().startswith("local"):
        use_this_python()


def _master() -> str:
    """Return where Spark will run, as far as this is known before it starts."""
    arguments = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    if found := re.search(r"(?:--master[ =]|spark\.master=)(\S+)", arguments):
        return found[1]
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (home and f"{home}/conf")
    settings = Path(folder, "spark-defaults.conf") if folder else None
    if settings is not None and settings.is_file():
        text = settings.read_text(encoding="utf-8")
        if found := re.search(r"^\s*spark\.master[\s=:]+(\S+)", text, re.MULTILINE):
            return found[1]
    return os.environ.get("MASTER", "local")
