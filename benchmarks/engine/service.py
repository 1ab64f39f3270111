"""Puts through a store process on loopback, against puts in this process, in one run."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.means.cpu import Cpu, measured_cpu
from benchmarks.means.stores import BODY_SIZES, Stores
from benchmarks.report.figures import Figure, ratio_cells, spread
from rmqstore_spark.client import StoreClient
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.layout.spans import U1
from tests.support.messages.blocks import encoded_traffic
from tests.support.messages.traffic import Traffic

__all__ = ["SYNC_ROCKETMQ", "service_figures"]

_SECTION: Final = "Through the store process"
_BLOCK_BYTES: Final = 4 << 20
_BYTES: Final = 512 << 20
_ROUNDS: Final = 9
_WINDOW: Final = 8 << 20
_AIMS: Final = {100: 0.8, 1024: 0.75, 4096: 0.7}

_SYNC_CLIENTS: Final = (1, 4, 16)
_SYNC_SECONDS: Final = 4.0
_SYNC_BODY: Final = 1024
_SYNC_WINDOW: Final = 32
"""Blocks on their way of a client that does not wait for each; and messages of a larger block."""
SYNC_ROCKETMQ: Final = {1: 2_900, 4: 5_900, 16: 15_600}
"""RocketMQ 4.9.8 in-process, SYNC_FLUSH, 1 KiB: messages a second by threads."""


def service_figures(stores: Stores) -> Iterator[Figure]:
    """Measure puts of encoded blocks, and puts under SYNC_FLUSH."""
    stores.folder.mkdir(parents=True, exist_ok=True)
    for body_size in BODY_SIZES:
        yield _blocks(stores.folder, body_size)
    for clients in _SYNC_CLIENTS:
        yield _synced(stores.folder, clients, rows=1, window=1)
    for rows in (1, _SYNC_WINDOW):
        yield _synced(stores.folder, max(_SYNC_CLIENTS), rows, _SYNC_WINDOW)


def _blocks(place: Path, body_size: int) -> Figure:
    rows = max(1, _BLOCK_BYTES // (body_size + 200))
    block = encoded_traffic(Traffic(rows, topics={"orders": 8}, body_size=body_size))[0]
    count = _BYTES // len(block)
    inside, through = [], []
    own, served = Cpu(), Cpu()
    for _ in range(_ROUNDS):  # in turns: the machine is not the same all the time
        inside.append(_in_process(place, block, count, own) * rows)
        through.append(_through_process(place, block, count, served) * rows)
    ratios = [one / other for one, other in zip(through, inside, strict=True)]
    gigabytes = _ROUNDS * count * len(block) / 1e9
    return Figure(
        _SECTION,
        f"put through the store process, {body_size} B",
        f"{statistics.median(through) / 1e6:.2f} M msg/s",
        "in-process",
        f"{statistics.median(inside) / 1e6:.2f} M msg/s",
        *ratio_cells(statistics.median(ratios), _AIMS[body_size]),
        note=f"{spread(ratios)} in {_ROUNDS} rounds; CPU of a GB: the client's process "
        f"{served['python'] / gigabytes:.2f} s and the store process "
        f"{served['store'] / gigabytes:.2f} s, in-process {own.seconds / gigabytes:.2f} s",
    )


def _in_process(place: Path, block: U1, count: int, spent: Cpu) -> float:
    """Blocks a second, queues and index caught up."""
    with _folder(place) as folder, StoreWriter.open(folder / "store", StoreConfig()) as store:
        store.create_topic("orders")
        with measured_cpu() as cpu:
            begin = time.perf_counter()
            for _ in range(count):
                store.put(np.array(block))
            store.flush()
            took = time.perf_counter() - begin
        spent.add(cpu)
        return count / took


def _through_process(place: Path, block: U1, count: int, spent: Cpu) -> float:
    with (
        _folder(place) as folder,
        _process(folder) as (endpoint, pid),
        StoreClient(endpoint) as client,
    ):
        client.open(["orders"])
        with measured_cpu(pid) as cpu:
            begin = time.perf_counter()
            with client.put_stream(max_in_flight_bytes=_WINDOW) as stream:
                for _ in range(count):
                    stream.send(block)
            client.flush()
            took = time.perf_counter() - begin
        spent.add(cpu)
        return count / took


def _synced(place: Path, clients: int, rows: int, window: int) -> Figure:
    """Return messages a second of clients that put blocks, each with a window of blocks in flight.

    With a window of one block a client waits for each answer.
    """
    (block,) = encoded_traffic(Traffic(rows, body_size=_SYNC_BODY))
    stop = threading.Event()
    counts = [0] * clients
    with (
        _folder(place) as folder,
        _process(folder, "--set=flushDiskType=SYNC_FLUSH") as (endpoint, _),
        StoreClient(endpoint) as client,
    ):
        client.open(["orders"])

        def put(number: int) -> None:
            most = window * len(block)
            with StoreClient(endpoint) as own, own.put_stream(max_in_flight_bytes=most) as stream:
                while not stop.is_set():
                    if window == 1:
                        stream.put(block)
                    else:
                        stream.send(block)
                stream.drain()
                counts[number] = stream.rows

        threads = [threading.Thread(target=put, args=(number,)) for number in range(clients)]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        time.sleep(_SYNC_SECONDS)
        stop.set()
        for thread in threads:
            thread.join()
        rate = sum(counts) / (time.perf_counter() - begin)
    other = SYNC_ROCKETMQ[clients]
    aim = 1.0 if clients == max(_SYNC_CLIENTS) else None
    what = "one 1 KiB message a put" if rows == 1 else f"{rows} messages of 1 KiB a put"
    waits = "waiting for each" if window == 1 else f"{window} on their way"
    return Figure(
        _SECTION,
        f"SYNC_FLUSH, {what}, {waits}, {clients} client{'s' if clients > 1 else ''}",
        f"{rate:,.0f} msg/s",
        "RocketMQ in-process",
        f"{other:,} msg/s",
        f"{rate / other:.2f}",
        f"{aim}" if aim else "",
        ("yes" if rate / other >= aim else "no") if aim else "",
    )


@contextmanager
def _folder(place: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="rmqstore-bench-", dir=place))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def _process(folder: Path, *arguments: str) -> Iterator[tuple[str, int]]:
    """Start a store process; return its endpoint and its process number."""
    ready = folder / "ready.json"
    command = [
        *(sys.executable, "-m", "rmqstore_spark.cli", "serve", "--store", str(folder / "store")),
        *("--port", "0", "--ready-file", str(ready), *arguments),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            while not ready.exists():
                if process.poll() is not None:
                    raise SystemExit("the store process did not start")
                time.sleep(0.02)
            yield str(json.loads(ready.read_text())["endpoint"]), process.pid
        finally:
            process.terminate()
            process.wait()
