"""How the tests start Spark's JVM, and the archive of classes that makes its start cheap.

`python -m tests.support.processes.jvm` writes the archive. A JVM that finds it loads Spark's
classes from there, parsed and verified, and takes half the CPU to get from its start to the first
rows.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from tools.java import find_java

__all__ = ["QUICK_JVM", "java_homes", "main"]

ARCHIVE: Final = Path(sys.prefix) / "spark.jsa"
"""Belongs to one Java and one Spark. A JVM that it does not fit starts without it."""

_QUICK: Final = "-XX:TieredStopAtLevel=1"
# A JVM writes what it thinks of an archive to its stdout.
_QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"

_HAS_ARCHIVE: Final = ARCHIVE.exists() and ARCHIVE.stat().st_size > 0

QUICK_JVM: Final = f"{_QUICK} {_QUIET} -XX:SharedArchiveFile={ARCHIVE}" if _HAS_ARCHIVE else _QUICK
"""For one that lives for a minute: what the better compiler gains is less than its own work."""

_HOME: Final = Path(__file__).with_name("java")


def java_homes() -> dict[str, str]:
    """The variables of a program whose JVM finds the archive wherever its settings are.

    Without the archive, they name Java's own home.
    """
    if not _HAS_ARCHIVE:
        return {"JAVA_HOME": str(find_java())}
    # In a program that such a program starts, Java's own home is known already.
    own = os.environ.get("TESTS_JAVA_HOME") or str(find_java())
    return {"JAVA_HOME": str(_HOME), "TESTS_JAVA_HOME": own}


def main() -> int:
    """Do in one session what the tests do, and archive the classes that this loaded."""
    from pyspark.sql import SparkSession

    from tests.support.stores.golden import GoldenStores

    ARCHIVE.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = GoldenStores(folder / "golden")("tiny") / "store"
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.log.level", "ERROR")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.sql.shuffle.partitions", "2")
            .config(
                "spark.driver.extraJavaOptions",
                f"{_QUICK} {_QUIET} -Dderby.system.home={folder} "
                f"-XX:ArchiveClassesAtExit={ARCHIVE}",
            )
            .getOrCreate()
        )
        rows = spark.read.format("rmqstore").load(str(store))
        rows.groupBy("topic").count().orderBy("topic").collect()
        rows.createOrReplaceTempView("messages")
        spark.sql("SELECT queueId, max(queueOffset) FROM messages GROUP BY 1").collect()
        rows.write.partitionBy("topic").parquet(str(folder / "parquet"))
        spark.read.parquet(str(folder / "parquet")).limit(5).collect()
        query = (
            spark.readStream.format("rmqstore")
            .option("startingOffsets", "earliest")
            .load(str(store))
            .writeStream.foreachBatch(
                lambda batch, _: batch.write.format("noop").mode("append").save()
            )
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        gateway: Any = spark.sparkContext._gateway
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # tells the JVM that its Python has gone
        gateway.proc.wait()
    if not ARCHIVE.exists():
        sys.stdout.write("This Java archives no classes. The tests run without, and take longer.\n")
        ARCHIVE.touch()  # as good as none, and not tried again
    return 0


if __name__ == "__main__":
    sys.exit(main())
