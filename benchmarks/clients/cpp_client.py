"""What the C++ client gets from a store process as its broker, against RocketMQ's own broker.

Recorded figures stand in for that where it is not installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from benchmarks.clients.brokers import QUEUES, Bench, Side
from benchmarks.clients.load import Sent
from benchmarks.clients.rounds import in_turns, middle, seconds_of
from benchmarks.means.child import ROOT
from benchmarks.report.figures import Figure, met
from rmqstore_spark.client import StoreClient
from rmqstore_spark.embedding import EmbeddedStore, Setting
from tests.broker.broker import name_server, route
from tests.support.waiting import eventually

__all__ = ["cpp_figures", "recorded_cpp_figures"]

_RECORDED: Final = {1: 3_800, 4: 7_400, 16: 9_300}
"""Messages a second by threads, of this client with RocketMQ's broker: see `_AGAINST`, `_HOW`."""
_AGAINST: Final = "RocketMQ 4.9.8, recorded"
_HOW: Final = (
    "recorded once on a similar machine, where client and broker shared 2 cores; not in this run"
)
_SIZE: Final = 128
"""Bytes of a body, as in what was recorded."""
_AIM: Final = 1.0
_AIM_ALONE: Final = 0.8
"""Of the sends of one thread to RocketMQ's broker in the same run."""
_WARM_UP: Final = 0.5
_MEASURED: Final = 1.5
_PATIENCE: Final = 120.0
_TOPIC: Final = "orders"

_SECTION: Final = "A store process as the broker of RocketMQ's C++ client, ASYNC_FLUSH"
_RECORDED_SECTION: Final = (
    "A store process as the broker of RocketMQ's C++ client, against recorded figures"
)


def cpp_figures(bench: Bench, folder: Path) -> Iterator[Figure]:
    """Send single messages to both brokers; print a hint if the client is not installed.

    Args:
        bench: the brokers.
        folder: for the client's logs.
    """
    if not _is_installed():
        return
    for threads in _RECORDED:
        ours, theirs = bench.both_in_turns(partial(_send_to, bench, folder, threads))
        against = f"RocketMQ {bench.version}"
        aim = _AIM if threads > 1 else _AIM_ALONE
        other = middle(sent.rate for sent in theirs)
        p99 = middle(sent.p99_ms for sent in theirs)
        failed, unsent = (sum(s.failed for s in theirs), sum(s.unsent for s in theirs))
        how = f"{against}'s {p99:.2f} ms, {failed} sends failed, and {unsent} found no route"
        yield _figure(_SECTION, threads, ours, against, other, aim, how)


def _send_to(bench: Bench, folder: Path, threads: int, side: Side) -> Sent:
    return _send(folder, bench.name_server, bench.topic(side, "cpp"), threads)


def _is_installed() -> bool:
    if find_spec("rocketmq") is not None:
        return True
    print(
        "RocketMQ's C++ client is not measured: install rocketmq 0.4.4 from PyPI "
        "(Linux on x86-64).",
        flush=True,
    )
    return False


def recorded_cpp_figures(folder: Path) -> Iterator[Figure]:
    """Send single messages; print a hint instead if the client is not installed.

    Args:
        folder: for the store and the client's logs.
    """
    if not _is_installed():
        return
    with name_server(folder) as address:
        settings: dict[str, Setting] = {
            "clients": "all",
            "vipListenPort": 0,
            "namesrvAddr": address,
        }
        with EmbeddedStore(folder / "cpp", settings=settings) as endpoint:
            with StoreClient(endpoint) as client:
                client.create_topic(_TOPIC, write_queue_nums=QUEUES, read_queue_nums=QUEUES)
            eventually(lambda: route(address, _TOPIC), _PATIENCE)
            ways = [partial(_send, folder, address, _TOPIC, threads) for threads in _RECORDED]
            for (threads, rate), sends in zip(_RECORDED.items(), in_turns(*ways), strict=True):
                yield _figure(_RECORDED_SECTION, threads, sends, _AGAINST, rate, _AIM, _HOW)


def _send(folder: Path, name_server: str, topic: str, threads: int) -> Sent:
    """Let a new process of the client send from threads that wait for each answer."""
    words = name_server, topic, threads, _SIZE, seconds_of(_WARM_UP), seconds_of(_MEASURED)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.clients.cpp_load", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "HOME": str(folder)},  # its logs go there
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=_PATIENCE,
    )
    said = json.loads(done.stdout.splitlines()[-1])
    return Sent(said["rate"], said["p99Ms"], said["failed"], said["failure"], said["unsent"])


def _figure(
    section: str, threads: int, sends: list[Sent], against: str, other: float, aim: float, how: str
) -> Figure:
    rate, p99 = middle(sent.rate for sent in sends), middle(sent.p99_ms for sent in sends)
    failed, unsent = (sum(sent.failed for sent in sends), sum(sent.unsent for sent in sends))
    failures = f"; {failed} sends failed: {sends[-1].failure}" if failed else ""
    failures += f"; {unsent} sends found no route in the client" if unsent else ""
    return Figure(
        section, f"{_SIZE} B, {threads} thread{'s' if threads > 1 else ''}, single sends",
        f"{rate:,.0f} msg/s", against, f"{other:,.0f} msg/s", f"{rate / other:.2f}", f"{aim:g}",
        met(not failed and rate >= aim * other), f"p99 {p99:.2f} ms; {how}{failures}",
    )  # fmt: skip
