"""How long the command takes: what a user waits for who asks one thing."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.means.stores import Stores
from benchmarks.report.figures import Figure, met
from rmqstore_spark.client import StoreClient
from rmqstore_spark.embedding import EmbeddedStore
from tests.support.messages.traffic import Traffic
from tests.support.stores.storebuilder import build_store

__all__ = ["command_figures"]

_SECTION: Final = "The command, a process each"
_ROUNDS: Final = 9
_AIM: Final = 0.3  # seconds
_TOPICS: Final = {f"topic-{number}": 4 for number in range(20)}
_RMQSTORE: Final = ("-m", "rmqstore_spark.cli")


class _Cost(NamedTuple):
    """Medians of one command, seconds: of the clock, and of processors."""

    wall: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.wall * 1e3:.0f} ms, {self.cpu * 1e3:.0f} ms of CPU"


def command_figures(stores: Stores) -> Iterator[Figure]:
    """Commands in turns, on a store of 20 topics and on a process that has one open."""
    stores.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="commands-", dir=stores.folder) as folder:
        store = str(build_store(Path(folder) / "store", Traffic(10_000, _TOPICS)))
        served = EmbeddedStore(Path(folder) / "served")
        with served as endpoint, StoreClient(endpoint) as client:
            client.create_topic("orders")
            floor = "python -c 'import pyarrow'"
            commands: dict[str, Sequence[str]] = {
                "python -c pass": ("-c", "pass"),
                "python -c 'import numpy'": ("-c", "import numpy"),
                floor: ("-c", "import pyarrow"),
                "--version": (*_RMQSTORE, "--version"),
                "--help": (*_RMQSTORE, "--help"),
                "topics --help": (*_RMQSTORE, "topics", "--help"),
                "stats ENDPOINT": (*_RMQSTORE, "stats", endpoint),
                "topics STORE": (*_RMQSTORE, "topics", store),
                "info STORE": (*_RMQSTORE, "info", store),
                "read STORE --limit 1": (*_RMQSTORE, "read", store, "--limit", "1"),
                "topics ENDPOINT": (*_RMQSTORE, "topics", endpoint),
            }
            costs = _in_turns(commands)
    for name, cost in costs.items():
        is_ours = _RMQSTORE[0] in commands[name]
        yield Figure(
            _SECTION,
            f"rmqstore {name}" if is_ours else name,
            str(cost),
            floor if is_ours else "",
            f"{costs[floor].wall * 1e3:.0f} ms" if is_ours else "",
            f"{cost.wall / costs[floor].wall:.2f}" if is_ours else "",
            aim=f"under {_AIM} s" if is_ours else "",
            met=met(cost.wall < _AIM) if is_ours else "",
        )


def _in_turns(commands: Mapping[str, Sequence[str]]) -> dict[str, _Cost]:
    """Run each command several times; the first time, which may compile modules, does not count."""
    found: dict[str, list[_Cost]] = {name: [] for name in commands}
    for number in range(_ROUNDS + 1):
        for name, words in commands.items():
            cost = _run(words)
            if number:
                found[name].append(cost)
    return {
        name: _Cost(*(statistics.median(column) for column in zip(*costs, strict=True)))
        for name, costs in found.items()
    }


def _run(words: Sequence[str]) -> _Cost:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    before, begin = _used(), time.perf_counter()
    subprocess.run([sys.executable, *words], env=environment, stdout=subprocess.DEVNULL, check=True)
    return _Cost(time.perf_counter() - begin, _used() - before)


def _used() -> float:
    """Seconds of processors that the children of this process have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
