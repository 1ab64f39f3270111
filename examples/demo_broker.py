"""The third scene of `make demo`: RocketMQ's own consumer gets what Spark writes."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rmqstore_spark
from demo_replicas import PATIENCE, free_port
from rmqstore_spark.client import StoreClient
from showing import console, heading, show_code

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GREETINGS = 5


def write_greetings(spark: SparkSession, endpoint: str) -> None:
    """Write some rows."""
    (
        spark.range(GREETINGS)
        .selectExpr("concat('greeting ', id, ' of Spark') AS body")
        .write.format("rmqstore")
        .option("endpoint", endpoint)
        .option("topic", "greetings")
        .mode("append")
        .save()
    )


def show_clients(spark: SparkSession) -> bool:
    """Run the scene; return whether the consumer got each row."""
    heading("Third scene: RocketMQ's own consumer gets what Spark writes")
    if find_spec("rocketmq") is None:
        console.print("There is no C++ client of RocketMQ for this platform: left out.")
        return True
    with ExitStack() as running:
        with console.status("Starting a name server, a broker and a consumer ..."):
            names = running.enter_context(name_server())
            port = free_port()
            broker = rmqstore_spark.embedded("broker", port=port, clients="all", namesrvAddr=names)
            endpoint = running.enter_context(broker)
            with StoreClient(endpoint) as client:
                client.create_topic("greetings")
            said = running.enter_context(consumer(names))
        console.print(
            f"A name server listens on {names}. A store process serves Spark at\n"
            f"{endpoint}, and is a broker on the same port. A consumer, which uses\n"
            "RocketMQ's C++ client, has subscribed to a topic of it.\n"
        )
        show_code(write_greetings)
        write_greetings(spark, endpoint)
        got = [said.next() for _ in range(GREETINGS)]
    console.print("The consumer has got them:")
    for line in got:
        console.print(line, style="green", markup=False)
    bodies = sorted(line.partition(",")[0] for line in got)
    return bodies == [f"greeting {number} of Spark" for number in range(GREETINGS)]


class Lines:
    """The lines that a process prints."""

    def __init__(self, stream: Iterable[str]) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._stream = stream
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._stream:
            self._lines.put(line.rstrip())
        self._lines.put(None)

    def next(self) -> str:
        """Return the next line; end the demo if none comes."""
        try:
            line = self._lines.get(timeout=PATIENCE)
        except queue.Empty:
            sys.exit(f"A process of the demo printed nothing for {PATIENCE:.0f} s.")
        if line is None:
            sys.exit("A process of the demo ended too early.")
        return line


@contextmanager
def process(*command: str) -> Iterator[Lines]:
    """Run a command; end it at the end of the block."""
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.DEVNULL,
    }
    env = {**os.environ, "HOME": os.getcwd()}  # where the C++ client logs
    with subprocess.Popen(command, env=env, text=True, **pipes) as running:
        try:
            yield Lines(running.stdout or ())
        finally:
            running.terminate()


@contextmanager
def name_server() -> Iterator[str]:
    """Run a name server; return its address."""
    with process(sys.executable, "-m", "rmqstore_spark.cli", "namesrv", "--port", "0") as said:
        yield said.next().split()[-1]


@contextmanager
def consumer(names: str) -> Iterator[Lines]:
    """Run a consumer that has subscribed."""
    file = Path(__file__).with_name("cpp_consumer.py")
    with process(sys.executable, str(file), names, "greetings") as said:
        while said.next() != "ready":
            pass
        yield said
