"""How the tests start Spark's JVM, and the archive of classes that makes its start cheap.

`python -m tests.support.processes.jvm` writes the archive. A JVM that finds it loads Spark's
classes from there, parsed and verified, and takes half the CPU to get from its start to the first
rows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.support.processes.ports import free_port
from tools.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ARCHIVE", "archive", "main", "quick_java"]

ARCHIVE: Final = Path(sys.prefix) / "spark.jsa"
"""Belongs to one Java and one Spark. A JVM that it does not fit starts without it."""

_QUICK: Final = (
    # For one that lives for a minute: what the better compiler gains is less than its own work.
    "-XX:TieredStopAtLevel=1",
    # A JVM writes what it thinks of an archive to its stdout.
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
)
_HOME: Final = Path(__file__).with_name("java")
_PIPELINE: Final = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()

@dp.table
def messages():
    reader = spark.readStream.format("rmqstore").option("startingOffsets", "earliest")
    return reader.load({store!r})

@dp.materialized_view
def by_topic():
    return spark.read.table("messages").groupBy("topic").count()
"""


def quick_java(*more: str) -> dict[str, str]:
    """Return the variables of a program whose JVMs all start quickly, through other programs too.

    Spark has a place for options in some of its programs, and none in others; all of them start the
    Java of JAVA_HOME.

    Args:
        more: further options of a JVM.
    """
    options = [*_QUICK, *more]
    if ARCHIVE.exists() and ARCHIVE.stat().st_size > 0:
        options.append(f"-XX:SharedArchiveFile={ARCHIVE}")
    return {
        "JAVA_HOME": str(_HOME),
        # In a program that such a program starts, Java's own home is known already.
        "TESTS_JAVA_HOME": os.environ.get("TESTS_JAVA_HOME") or str(find_java()),
        "TESTS_JAVA_OPTIONS": "\n".join(options),
    }


def main() -> int:
    """Write the archive, in a process that can fail.

    Spark gives a Python that it starts ten seconds to connect, which a busy machine can exceed.
    """
    command = [sys.executable, "-c", f"from {__spec__.name} import archive; archive()"]
    for _ in range(2):
        if subprocess.run(command, check=False).returncode == 0:
            return 0
    sys.stdout.write("Spark has failed, so no classes are archived: the tests take longer.\n")
    ARCHIVE.touch()  # as good as none, and not tried again
    return 0


def archive() -> None:
    """Do in one JVM what the tests do in many, and archive the classes that this loaded."""
    from pyspark.sql import SparkSession

    from tests.support.stores.golden import GoldenStores

    ARCHIVE.unlink(missing_ok=True)  # also of an attempt that failed: this one would load it
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = GoldenStores(folder / "golden")("tiny") / "store"
        os.environ |= quick_java(f"-Dderby.system.home={folder}")
        builder = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.log.level", "ERROR")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.driver.extraJavaOptions", f"-XX:ArchiveClassesAtExit={ARCHIVE}")
        )
        spark = builder.getOrCreate()
        _query(spark, store, folder)
        spark.stop()
        port = free_port()
        spark = (
            builder.config("spark.sql.catalogImplementation", "hive")
            .config("spark.connect.grpc.binding.address", "127.0.0.1")
            .config("spark.connect.grpc.binding.port", str(port))
            .getOrCreate()
        )
        _run_pipeline(spark, f"sc://127.0.0.1:{port}", store, folder)
        gateway: Any = spark.sparkContext._gateway
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # tells the JVM that its Python has gone
        gateway.proc.wait()
    if not ARCHIVE.exists():
        sys.stdout.write("This Java archives no classes. The tests run without, and take longer.\n")
        ARCHIVE.touch()


def _query(spark: SparkSession, store: Path, folder: Path) -> None:
    """Read, write and stream."""
    rows = spark.read.format("rmqstore").load(str(store))
    rows.groupBy("topic").count().orderBy("topic").collect()
    rows.createOrReplaceTempView("messages")
    spark.sql("SELECT queueId, max(queueOffset) FROM messages GROUP BY 1").collect()
    rows.write.partitionBy("topic").parquet(str(folder / "parquet"))
    spark.read.parquet(str(folder / "parquet")).limit(5).collect()
    stream = spark.readStream.format("rmqstore").option("startingOffsets", "earliest")
    writer = stream.load(str(store)).writeStream.trigger(availableNow=True)
    for name, sink in (
        ("batches", writer.foreachBatch(lambda batch, _: batch.write.format("noop").save())),
        ("files", writer.format("parquet").option("path", str(folder / "copy"))),
    ):
        sink.option("checkpointLocation", str(folder / name)).start().awaitTermination()


def _run_pipeline(spark: SparkSession, remote: str, store: Path, folder: Path) -> None:
    """Serve Connect, and run a declarative pipeline as its client."""
    from pyspark import pipelines

    (folder / "spark-pipeline.yml").write_text(
        f"name: all\nstorage: {folder.as_uri()}/storage\n"
        "libraries:\n  - glob:\n      include: transformations/**\n"
    )
    (folder / "transformations").mkdir()
    (folder / "transformations" / "all.py").write_text(_PIPELINE.format(store=str(store)))
    jvm: Any = spark.sparkContext._jvm
    jvm.org.apache.spark.sql.connect.service.SparkConnectService.start(spark.sparkContext._jsc.sc())
    subprocess.run(
        [sys.executable, str(Path(pipelines.__file__).with_name("cli.py")), "run"],
        cwd=folder, env=os.environ | {"SPARK_REMOTE": remote}, check=True,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
