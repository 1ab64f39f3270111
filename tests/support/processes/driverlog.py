"""What Spark's driver logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["driver_log"]

_PLANS = "spark.sql.planChangeLog.level"


@contextmanager
def driver_log(spark: SparkSession, path: Path) -> Iterator[None]:
    """Let the driver log to a file as well: from INFO on, and with every plan of every query."""
    machine: Any = spark._jvm
    log4j = machine.org.apache.logging.log4j
    layout = log4j.core.layout.PatternLayout.newBuilder().withPattern("%p %c %m%n%ex").build()
    appender = log4j.core.appender.FileAppender.newBuilder().withFileName(str(path))
    appender = appender.setName("test").setLayout(layout).build()
    root = log4j.LogManager.getRootLogger()
    appender.start()
    root.addAppender(appender)
    spark.sparkContext.setLogLevel("INFO")
    spark.conf.set(_PLANS, "INFO")
    try:
        yield
    finally:
        spark.conf.unset(_PLANS)
        spark.sparkContext.setLogLevel("ERROR")
        root.removeAppender(appender)
        appender.stop()
