"""Spark Connect and declarative pipelines: the data source runs where the server is.

Each test starts programs of its own: this process has a classic session, beside which Spark allows
no other kind.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from rmqstore_spark.base.workers import spark_version
from tests.datasource.driving import GrowingStore
from tests.datasource.sink.serving import Served
from tests.pipelines.processes import ROOT, environment
from tests.support.processes.ports import CONNECT_PORT, free_port, holding

BIN = Path(pyspark.__file__).parent / "bin"
pytestmark = [pytest.mark.slow, pytest.mark.spark_versions_more]

PATIENCE = 300
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"

CLIENT = """
    import json, sys
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    remote, store, endpoint, folder = sys.argv[1:]
    spark = SparkSession.builder.remote(remote).getOrCreate()
    said = {"kind": type(spark).__module__}

    def source(reader):
        return reader.format("rmqstore").option("startingOffsets", "earliest")

    messages = source(spark.read).load(store)
    said["count"] = messages.count()
    said["pandas"] = len(messages.select("topic").toPandas())
    spark.sql(f"CREATE TEMPORARY VIEW m USING rmqstore OPTIONS (path '{store}')")
    said["view"] = spark.sql("SELECT count(*) FROM m WHERE queueId = 1").first()[0]
    try:
        source(spark.read).option("subscribd", "x").load(store).count()
    except PySparkException as error:
        said["error"] = str(error)

    def write(writer):
        return writer.format("rmqstore").option("endpoint", endpoint)

    rows = spark.range(50).selectExpr("'batch-' || id AS body")
    write(rows.write.mode("append")).option("topic", "batch").save()

    def copy(frame, name):
        started = (
            write(frame.writeStream).option("topic", name)
            .option("checkpointLocation", f"{folder}/{name}").trigger(availableNow=True).start()
        )
        assert started.awaitTermination(200)
        return started

    limited = source(spark.readStream).option("maxOffsetsPerTrigger", 30).load(store)
    said["batches"] = []
    while sum(said["batches"]) < 100:  # before Spark 4.2 a run reads one micro-batch
        query = copy(limited.select("body"), "copied")
        counts = [done.numInputRows for done in query.recentProgress if done.numInputRows]
        assert counts
        said["batches"] += counts
    rows.write.parquet(f"{folder}/parquet")
    files = copy(spark.readStream.schema(rows.schema).parquet(f"{folder}/parquet"), "files")
    # What a client is told does not depend on the source.
    said["items"] = [done.recentProgress[0]["numInputRows"] for done in (query, files)]
    said["imported"] = "rmqstore_spark" in sys.modules

    import rmqstore_spark
    rmqstore_spark.register(spark)
    said["registered"] = source(spark.read).load(store).count()
    print("SAID" + json.dumps(said))
    spark.stop()
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A store that is written to, with its process."""
    made = Served(tmp_path / "target" / "store")
    yield made
    made.process.stop()


@pytest.fixture
def growing(tmp_path: Path) -> GrowingStore:
    """A store with 100 messages, half of them in each of two queues."""
    store = GrowingStore(tmp_path / "b" / "store")
    store.put(100)
    return store


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a Connect server on loopback, a process of its own."""
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
    }
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    log = tmp_path / "server.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [BIN / "spark-submit", "--master", "local[2]", "--class", SERVER, *options,
             "spark-internal"],
            cwd=tmp_path, env=environment(), stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + PATIENCE
        while not listens(port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


@pytest.fixture
def connects_port() -> Iterator[None]:
    """One test of all that run on this machine has the port."""
    with holding(CONNECT_PORT):
        yield


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def check(said: dict[str, Any], target: Served) -> None:
    """What a client saw, and what it wrote."""
    assert said["kind"].startswith("pyspark.sql.connect.")
    assert (said["count"], said["pandas"], said["view"]) == (100, 100, 50)
    assert "OptionError: Unknown option 'subscribd'. Did you mean subscribe?" in said["error"]
    assert 'File "' not in said["error"]
    assert said["batches"] == [30, 30, 30, 10]
    assert said["items"] == [None, None]
    assert said["registered"] == 100
    wanted = Counter(f"batch-{number}".encode() for number in range(50))
    assert target.bodies("batch", least=50) == target.bodies("files", least=50) == wanted
    assert sum(target.bodies("copied", least=100).values()) == 100


def run(command: list[str], folder: Path, env: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_client(remote: str, store: Path, target: Served, folder: Path) -> dict[str, Any]:
    script = textwrap.dedent(CLIENT)
    command = [sys.executable, "-c", script, remote, str(store), target.endpoint, str(folder)]
    out = run(command, folder, environment())
    (line,) = (line for line in out.splitlines() if line.startswith("SAID"))
    said: dict[str, Any] = json.loads(line.removeprefix("SAID"))
    return said


@pytest.mark.usefixtures("connects_port")
def test_a_session_that_starts_its_own_server(
    growing: GrowingStore, served: Served, tmp_path: Path
) -> None:
    check(run_client("local[2]", growing.path, served, tmp_path), served)


def test_a_server_elsewhere(
    growing: GrowingStore, served: Served, tmp_path: Path, server: str
) -> None:
    """Its client has no use for the package until it registers the format itself."""
    said = run_client(server, growing.path, served, tmp_path)
    assert not said["imported"]
    check(said, served)


@pytest.mark.usefixtures("connects_port")
@pytest.mark.skipif(spark_version() < (4, 1), reason="Spark 4.0 has no declarative pipelines")
def test_a_declarative_pipeline_and_its_next_run(
    growing: GrowingStore, served: Served, tmp_path: Path
) -> None:
    """The one of `examples`: a streaming table, a view over it, and a sink."""
    folder = pipeline(growing.path, served, tmp_path)
    command = [str(BIN / "spark-pipelines"), "run", "--conf"]
    command += ["spark.sql.catalogImplementation=hive", "--conf", "spark.ui.enabled=false"]
    for _ in range(2):
        run(command, folder, environment())
        wanted = Counter(row["body"] for row in stored(growing.path) if row["tags"] == "TagA")
        assert wanted
        assert served.bodies("paid_orders", least=wanted.total()) == wanted
        growing.put(40)


def pipeline(store: Path, target: Served, folder: Path) -> Path:
    """Copy the example, with the places that a user would put in."""
    copy = folder / "pipeline"
    (copy / "transformations").mkdir(parents=True)
    for path in (ROOT / "examples" / "pipeline").rglob("*.*"):
        text = path.read_text()
        for before, after in (
            ("/tmp/orders-pipeline", str(folder / "storage")),
            ("/data/broker-a/store", str(store)),
            ("rmq://127.0.0.1:35383", target.endpoint),
        ):
            text = text.replace(before, after)
        (copy / path.relative_to(ROOT / "examples" / "pipeline")).write_text(text)
    return copy


def stored(path: Path) -> list[dict[str, Any]]:
    """The messages of a store, as the reader gives them without Spark."""
    from rmqstore_spark.reader import Store
    from rmqstore_spark.reader.options import ReadOptions

    with Store.open(str(path)) as store:
        options = ReadOptions(columns=("tags", "body"))
        return [row for batch in store.scan(options=options) for row in batch.to_pylist()]
