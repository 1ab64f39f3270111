"""RocketMQ's clients beside blocks at full speed, and puts of blocks beside RocketMQ's clients."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, NamedTuple

import uvloop

from benchmarks.means.stores import Stores
from benchmarks.protocols.calls import (
    Calls,
    pull_request,
    put_calls,
    remoting_calls,
    send_request,
)
from benchmarks.protocols.loads import PUTS, SCANS, SENDERS, SENDS, Load
from benchmarks.protocols.store import Served, served
from benchmarks.report.figures import Figure, ratio_cells
from benchmarks.spark.beside import staged_batch
from rmqstore_spark.remoting.codec.command import Command

__all__ = ["protocol_figures"]

_ROUNDS: Final = 2
_SECONDS: Final = 1.5
_MOST: Final = 10.0
"""How many times as long as alone a call may take at p99: with more, it starves."""

_ALONE: Final = "alone"
_COMMIT: Final = "a commit of 1 GB"
_BESIDE: Final = {
    SCANS: "a scan of the log through the endpoint",
    PUTS: "puts of 4 MiB through the endpoint",
    SENDS: f"{SENDERS} clients that send over remoting",
}
_REQUESTS: Final[dict[str, Callable[[int], Command]]] = {
    "a send over remoting": send_request,
    "a pull of 32 messages over remoting": pull_request,
}
_PUT: Final = "a put of one message through the endpoint"

_SECTION: Final = "RocketMQ's clients beside Spark's on one store process"


class _Measured(NamedTuple):
    """What was measured at one time.

    Attributes:
        call: the kind of call.
        beside: beside what.
        calls: what came of them.
        meanwhile: what the other protocol did, as text.
    """

    call: str
    beside: str
    calls: Calls
    meanwhile: str


def protocol_figures(stores: Stores) -> Iterator[Figure]:
    """Measure each call alone and beside each load, in turns, on a new store for each round."""
    found: dict[tuple[str, str], Calls] = defaultdict(Calls)
    meanwhile: dict[tuple[str, str], list[str]] = defaultdict(list)
    for _ in range(_ROUNDS):
        with served(stores.folder) as store:
            for measured in _round(store):
                key = measured.call, measured.beside
                found[key].add(measured.calls)
                meanwhile[key].append(measured.meanwhile)
    for (call, beside), calls in found.items():
        if beside != _ALONE:
            name = f"{call}, beside {beside}"
            yield from _figures(name, calls, found[call, _ALONE], meanwhile[call, beside])


def _figures(name: str, calls: Calls, alone: Calls, meanwhile: list[str]) -> Iterator[Figure]:
    note = f"{len(calls.seconds):,} calls; meanwhile {', '.join(meanwhile)}"
    if calls.refused:
        note += f"; {calls.refused} were refused: {calls.refusal}"
    for percent, what, most in ((50, "median", None), (99, "p99", _MOST)):
        mine, other = calls.percentile(percent), alone.percentile(percent)
        yield Figure(
            _SECTION, f"{name}, {what}", f"{mine * 1e3:.2f} ms", _ALONE, f"{other * 1e3:.2f} ms",
            *ratio_cells(mine / other, at_most=most), note=note if most else "",
        )  # fmt: skip


def _round(store: Served) -> Iterator[_Measured]:
    for name in _REQUESTS:
        yield _Measured(name, _ALONE, _asked(store, name, asyncio.sleep(_SECONDS)), "")
    yield _Measured(_PUT, _ALONE, put_calls(store.endpoint, _SECONDS), "")
    for name in _REQUESTS:
        yield _beside_commit(store, name)
    for kind in (SCANS, PUTS):
        with Load(kind, store.endpoint) as load:
            found = {name: _asked(store, name, asyncio.sleep(_SECONDS)) for name in _REQUESTS}
        for name, calls in found.items():
            yield _Measured(name, _BESIDE[kind], calls, load.rate)
        store.settle()
    with Load(SENDS, store.address) as load:
        calls = put_calls(store.endpoint, _SECONDS)
    yield _Measured(_PUT, _BESIDE[SENDS], calls, load.rate)


def _beside_commit(store: Served, name: str) -> _Measured:
    request = staged_batch(store.client, "batches")
    store.settle()
    took = 0.0

    async def commit() -> None:
        nonlocal took
        began = time.perf_counter()
        await asyncio.to_thread(store.client.commit, request)
        took = time.perf_counter() - began

    calls = _asked(store, name, commit())
    store.settle()
    return _Measured(name, _COMMIT, calls, f"{took:.2f} s")


def _asked(store: Served, name: str, during: Coroutine[Any, Any, object]) -> Calls:
    """Make calls over remoting until something else is over."""
    return uvloop.run(remoting_calls(store.address, _REQUESTS[name], during))
