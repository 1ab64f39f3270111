"""The Spark session of a job, however it was started."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rmqstore_spark.workers import use_this_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CONF", "prepare_environment", "session", "start_session"]

CONF = Path(__file__).resolve().parents[2] / "conf"
"""The settings of the repository, where the package is used from there."""


@contextmanager
def session(app_name: str) -> Iterator[SparkSession]:
    """Give what `start_session` gives, and stop it at the end."""
    spark = start_session(app_name)
    try:
        yield spark
    finally:
        spark.stop()


def start_session(app_name: str) -> SparkSession:
    """Give the session that spark-submit set up, or a local one with the settings of `conf/`.

    Executors need `rmqstore_spark` installed.
    """
    prepare_environment()
    from pyspark.sql import SparkSession

    # Dates and times are UTC in all that the jobs write and print.
    builder = SparkSession.builder.appName(app_name).config("spark.sql.session.timeZone", "UTC")
    return builder.getOrCreate()


def prepare_environment() -> None:
    """Set the variables that Spark starts by, where the user has not."""
    if "SPARK_HOME" not in os.environ and CONF.is_dir():
        os.environ.setdefault("SPARK_CONF_DIR", str(CONF))
    if _master().startswith("local"):
        use_this_python()


def _master() -> str:
    """Where Spark will run, as far as can be told before it starts."""
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
