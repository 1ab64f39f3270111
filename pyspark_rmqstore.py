"""Makes `format("rmqstore")` known to Spark.

When Spark meets a format that it does not know, it imports every top-level module whose name
begins with `pyspark_` and registers its `DefaultSource`. One such module that fails breaks that for
all formats, without saying why: so this one never raises. What is wrong with the installation is
told when the format is used.
"""

from __future__ import annotations

import contextlib
import os
import sys

__all__ = ["DefaultSource"]

try:
    from rmqstore_spark.datasource.source import RmqStoreDataSource as DefaultSource
except Exception as _error:  # noqa: BLE001 - whatever is wrong must not reach Spark's discovery
    _cause = f"{type(_error).__name__}: {_error}"

    with contextlib.suppress(Exception):  # without pyspark nobody asks for a source
        from pyspark.sql.datasource import DataSource

        class DefaultSource(DataSource):  # type: ignore[no-redef]  # the stand-in for the source
            """Takes the source's place, and says why it is not there."""

            @classmethod
            def name(cls) -> str:
                """Name the format."""
                return "rmqstore"

            def __init__(self, options: object) -> None:  # noqa: ARG002 - Spark gives them
                """Say what is wrong."""
                os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # of this worker, which ends here
                raise ImportError(
                    f"rmqstore-spark is installed but cannot be imported ({_cause}). Install it "
                    f"with its dependencies into the Python that Spark runs, {sys.executable}, or "
                    "set PYSPARK_PYTHON to the Python that has it before Spark starts: on the "
                    "driver and on every executor."
                )
