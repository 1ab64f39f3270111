"""Calls of a store process, in turns with the same calls of a server that does nothing."""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from benchmarks.engine.service import SYNC_ROCKETMQ
from benchmarks.floors.callers import (
    call_at_fixed_times,
    call_by_many,
    call_by_threads,
    call_one_by_one,
    connected,
    exchange,
)
from benchmarks.floors.servers import APPENDED, BLOCKS, LENGTH, LOOP, SYNCED, running
from benchmarks.means.cpu import measured_cpu
from benchmarks.means.stores import Stores
from benchmarks.protocols.calls import QUEUES, send_request
from benchmarks.protocols.loads import PUTS, Load
from benchmarks.report.figures import Figure, met, ratio_cells
from benchmarks.spark.beside import traffic_block
from rmqstore_spark.client import StoreClient
from rmqstore_spark.embedding import EmbeddedStore, Setting
from rmqstore_spark.remoting.codec.frames import encode_frame
from tests.support.messages.blocks import encoded_traffic
from tests.support.messages.traffic import Traffic
from tests.support.processes.ports import free_port

__all__ = ["floor_figures"]

_T = TypeVar("_T")

_SECTION: Final = "What this machine allows"
_ROUNDS: Final = 5
_SECONDS: Final = 2.0
_CPU_AIMS: Final = {1: 60.0, 64: 15.0}
"""Microseconds of a send, by clients."""
_PUT_AIM_MS: Final = 0.2
_PUT_THREADS: Final = 16
_SYNC_AIM: Final = 0.5
_BESIDE_AIM: Final = 3.0


class _Process(NamedTuple):
    """A store process."""

    endpoint: str
    port: int
    pid: int


def floor_figures(stores: Stores) -> Iterator[Figure]:
    """Measure sends of one and of many clients, synchronous puts, and sends beside blocks."""
    stores.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="floors-", dir=stores.folder) as name:
        folder = Path(name)
        with _store_process(folder / "sends", "ASYNC_FLUSH") as store:
            for clients in _CPU_AIMS:
                yield from _sends(store, folder, clients)
        for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
            with _store_process(folder / flush, flush) as store:
                yield from _puts(store, folder, flush)
        with _store_process(folder / "blocks", "ASYNC_FLUSH") as store:
            yield from _beside_blocks(store, folder)


@contextmanager
def _store_process(folder: Path, flush: str) -> Iterator[_Process]:
    settings: dict[str, Setting] = {"clients": "all", "vipListenPort": 0, "flushDiskType": flush}
    port = free_port()
    process = EmbeddedStore(folder, port=port, settings=settings)
    with process as endpoint, StoreClient(endpoint) as client:
        client.create_topic("orders", write_queue_nums=QUEUES, read_queue_nums=QUEUES)
        assert process.pid is not None  # noqa: S101 - it runs
        yield _Process(endpoint, port, process.pid)


def _frame() -> bytes:
    return bytes(encode_frame(send_request(0)))


# ---- sends --------------------------------------------------------------------------------------


def _sends(store: _Process, folder: Path, clients: int) -> Iterator[Figure]:
    frame = _frame()
    with running(LOOP, folder) as ((port,), pid):
        ours, theirs = _in_turns(
            partial(_rate_and_cpu, store.port, store.pid, frame, clients),
            partial(_rate_and_cpu, port, pid, frame, clients),
        )
    name = "a client that waits" if clients == 1 else f"{clients} clients that wait"
    against = "the same frames, received and answered on uvloop"
    rates = [[rate for rate, _ in found] for found in (ours, theirs)]
    yield Figure(
        _SECTION, f"{name}: sends over remoting", f"{_middle(rates[0]):,.0f} msg/s",
        against, f"{_middle(rates[1]):,.0f} msg/s", f"{_middle(rates[0]) / _middle(rates[1]):.2f}",
    )  # fmt: skip
    mine, other = (_middle([cpu for _, cpu in found]) for found in (ours, theirs))
    aim = _CPU_AIMS[clients]
    yield Figure(
        _SECTION, f"{name}: CPU of the process, each send", f"{mine:.0f} us", against,
        f"{other:.0f} us", f"{mine / other:.2f}", f"at most {aim:g} us", met(mine <= aim),
    )  # fmt: skip


def _rate_and_cpu(port: int, pid: int, frame: bytes, clients: int) -> tuple[float, float]:
    """Return calls a second, and microseconds of CPU of the server for each."""
    with measured_cpu(pid) as cpu:
        if clients == 1:
            count = call_one_by_one(port, frame, _SECONDS)
        else:
            count = call_by_many(port, frame, clients, _SECONDS)
    return count / _SECONDS, cpu["store"] / count * 1e6


# ---- puts of clients that wait ------------------------------------------------------------------


def _puts(store: _Process, folder: Path, flush: str) -> Iterator[Figure]:
    (block,) = encoded_traffic(Traffic(1, body_size=1024))
    frame = len(block).to_bytes(LENGTH, "big") + block.tobytes()
    is_synced = flush == "SYNC_FLUSH"
    with running(SYNCED if is_synced else APPENDED, folder) as ((port,), _):

        def put_once() -> Callable[[], object]:
            stream = StoreClient(store.endpoint).put_stream()
            return lambda: stream.put(block)

        def floor_once() -> Callable[[], object]:
            return partial(exchange, connected(port), frame)

        for threads in (1, _PUT_THREADS):
            ours, theirs = _in_turns(
                partial(call_by_threads, put_once, threads, _SECONDS),
                partial(call_by_threads, floor_once, threads, _SECONDS),
            )
            mine, other = (_middle(found) / _SECONDS for found in (ours, theirs))
            yield _put_figure(flush, threads, mine, other)


def _put_figure(flush: str, threads: int, mine: float, other: float) -> Figure:
    is_synced = flush == "SYNC_FLUSH"
    flushed = "flushed together and " if is_synced else ""
    against = f"the same bytes, received, appended, {flushed}answered"
    if threads == 1:
        each = threads / mine * 1e3
        return Figure(
            _SECTION, f"{flush}, one 1 KiB message a put, a thread: time of a put",
            f"{each:.2f} ms", against, f"{threads / other * 1e3:.2f} ms", f"{other / mine:.2f}",
            f"at most {_PUT_AIM_MS:g} ms", met(each <= _PUT_AIM_MS),
        )  # fmt: skip
    least = _SYNC_AIM * SYNC_ROCKETMQ[_PUT_THREADS]
    return Figure(
        _SECTION, f"{flush}, one 1 KiB message a put, {threads} threads of a process",
        f"{mine:,.0f} msg/s", against, f"{other:,.0f} msg/s", f"{mine / other:.2f}",
        f"{least:,.0f} msg/s" if is_synced else "", met(mine >= least) if is_synced else "",
        f"the aim is half of what {threads} threads of Java put inside of RocketMQ's process",
    )  # fmt: skip


# ---- beside blocks ------------------------------------------------------------------------------


def _beside_blocks(store: _Process, folder: Path) -> Iterator[Figure]:
    frame = _frame()
    with running(BLOCKS, folder) as ((blocks, port), _):

        def ours() -> tuple[float, float]:
            alone = call_at_fixed_times(store.port, frame, _SECONDS)
            with Load(PUTS, store.endpoint):
                return alone, call_at_fixed_times(store.port, frame, _SECONDS)

        def theirs() -> tuple[float, float]:
            alone = call_at_fixed_times(port, frame, _SECONDS)
            with _blocks_to(blocks):
                return alone, call_at_fixed_times(port, frame, _SECONDS)

        found = _in_turns(ours, theirs)
    texts, ratios = [], []
    for pairs in found:
        alone, beside = (_middle([pair[side] for pair in pairs]) for side in (0, 1))
        texts.append(f"{beside * 1e3:.2f} ms, alone {alone * 1e3:.2f} ms")
        ratios.append(beside / alone)
    yield Figure(
        _SECTION, "a send over remoting beside puts of 4 MiB, p99", texts[0],
        "a frame that is appended to a file, to which the blocks go, and answered", texts[1],
        *ratio_cells(ratios[0], at_most=_BESIDE_AIM), note=f"the floor's ratio is {ratios[1]:.1f}",
    )  # fmt: skip


@contextmanager
def _blocks_to(port: int) -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(target=_send_blocks, args=(port,))
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _send_blocks(port: int) -> None:
    """Send blocks, two of them on their way, as a client of the endpoint does."""
    block = memoryview(traffic_block().tobytes().ljust(4 << 20, b"\0"))
    with connected(port) as connection:
        connection.sendall(block)
        while True:
            exchange(connection, block)


def _in_turns(ours: Callable[[], _T], theirs: Callable[[], _T]) -> tuple[list[_T], list[_T]]:
    """Call both several times, in turns; the first time of each does not count."""
    found: tuple[list[_T], list[_T]] = ([], [])
    for _ in range(_ROUNDS + 1):
        for own, call in zip(found, (ours, theirs), strict=True):
            own.append(call())
    return found[0][1:], found[1][1:]


def _middle(values: list[float] | list[int]) -> float:
    return statistics.median(values)
