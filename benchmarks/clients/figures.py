"""All figures of clients."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.clients.brokers import bench
from benchmarks.clients.cpp_client import cpp_figures, recorded_cpp_figures
from benchmarks.clients.groups import group_figures
from benchmarks.clients.held_pulls import held_figures
from benchmarks.clients.java_clients import java_figures
from benchmarks.clients.spark import spark_client_figures
from benchmarks.means.stores import Stores
from benchmarks.report.figures import Figure
from tests.rocketmq.processes import RocketMq
from tools.java import find_java

__all__ = ["client_figures", "group_of_three_figures"]

_HOME: Final = "ROCKETMQ_HOME"
_JAVA_OPTIONS: Final = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:G1HeapRegionSize=16m")
"""As RocketMQ's own scripts start its broker, but for the size of the heap."""


def client_figures(stores: Stores) -> Iterator[Figure]:
    """Measure what a store process costs alone, then all that needs RocketMQ, if there is one.

    If there is none, measure the C++ client, for which figures with RocketMQ's broker are recorded.
    """
    stores.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="clients-", dir=stores.folder) as name:
        folder = Path(name)
        yield from held_figures(folder)
        rocketmq = _rocketmq(folder)
        if rocketmq is None:
            yield from recorded_cpp_figures(folder)
        else:
            with bench(rocketmq, folder) as both:
                yield from java_figures(both)
                yield from cpp_figures(both, folder)
                yield from spark_client_figures(both)


def group_of_three_figures(stores: Stores) -> Iterator[Figure]:
    """Measure a DLedger group, if there is a RocketMQ to compare it with."""
    stores.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="groups-", dir=stores.folder) as name:
        rocketmq = _rocketmq(Path(name))
        if rocketmq is not None:
            yield from group_figures(rocketmq, Path(name))


def _rocketmq(folder: Path) -> RocketMq | None:
    """Find the distribution of RocketMQ. Without ROCKETMQ_HOME, print a hint and return None."""
    home = os.environ.get(_HOME)
    if not home:
        print(
            f"RocketMQ's Java clients are not measured: set {_HOME} to the folder of a RocketMQ "
            "4.9 release.",
            flush=True,
        )
        return None
    if not list(Path(home, "lib").glob("rocketmq-*.jar")):
        raise SystemExit(
            f"{_HOME}={home} is not the folder of a RocketMQ release: it has no lib/rocketmq-*.jar."
        )
    java = find_java()
    if not (java / "bin" / "javac").exists():
        raise SystemExit(
            f"{java} is not a JDK, and the Java client that measures is compiled: set JAVA_HOME to "
            "a JDK."
        )
    return RocketMq(Path(home).resolve(), java, folder, _JAVA_OPTIONS)
