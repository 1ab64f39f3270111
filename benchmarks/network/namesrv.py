"""The name server with 100 brokers and 10,000 topics: registrations, routes, and heartbeats."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from typing import Final

import numpy as np
import uvloop

from benchmarks.means.stores import Stores
from benchmarks.report.figures import Figure
from rmqstore_spark.namesrv.config import NamesrvConfig
from rmqstore_spark.namesrv.process import running
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command

__all__ = ["namesrv_figures"]

_BROKERS: Final = 100
_TOPICS: Final = 10_000
_ROUTES: Final = 2_000
_ROUTE_MS: Final = 2.0
_REGISTER_SECONDS: Final = 1.0


def namesrv_figures(_: Stores) -> Iterator[Figure]:
    """All brokers have all topics. Server and client share one core, and one event loop."""
    first, again, routes = uvloop.run(_measured())
    yield _figure(f"registration of {_TOPICS:,} topics", max(first), _REGISTER_SECONDS, "slowest")
    yield _figure("the same again, unchanged", max(again), _REGISTER_SECONDS, "slowest")
    half, most = np.percentile(routes, [50, 99])
    yield _figure(f"route over {_BROKERS} brokers, not asked before", most, _ROUTE_MS / 1e3, "p99")
    yield _figure(
        f"route over {_BROKERS} brokers, not asked before", half, _ROUTE_MS / 1e3, "median"
    )


def _figure(what: str, seconds: float, aim: float, which: str) -> Figure:
    return Figure(
        "Name server", f"{what}: {which}", f"{seconds * 1e3:.2f} ms", aim=f"under {aim * 1e3:g} ms",
        met="yes" if seconds < aim else "no", note="with the client's own time",
    )  # fmt: skip


async def _measured() -> tuple[list[float], list[float], list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        config = NamesrvConfig(listen_port=0, kv_config_path=f"{folder}/kv.json")
        async with running(config) as address, await RemotingClient.connect(address) as client:
            brokers = [_registration(n) for n in range(_BROKERS)]
            first = [await _timed(client, each) for each in brokers]
            again = [await _timed(client, each) for each in brokers]
            routes = [
                await _timed(client, Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name}))
                for name in map(_topic, range(_ROUTES))
            ]
            await asyncio.sleep(0)
            return first, again, routes


async def _timed(client: RemotingClient, request: Command) -> float:
    began = time.perf_counter()
    await client.ask_for(request, 60)
    return time.perf_counter() - began


def _topic(number: int) -> str:
    return f"topic-of-an-application-{number:05}"


def _registration(number: int) -> Command:
    ext = {
        "brokerName": f"broker-{number}", "brokerAddr": f"192.0.2.{number}:10911",
        "clusterName": "DefaultCluster", "brokerId": "0", "haServerAddr": "192.0.2.1:10912",
    }  # fmt: skip
    table = {
        name: {
            "order": False, "perm": 6, "readQueueNums": 8, "topicFilterType": "SINGLE_TAG",
            "topicName": name, "topicSysFlag": 0, "writeQueueNums": 8,
        }
        for name in map(_topic, range(_TOPICS))
    }  # fmt: skip
    wrapper = {"dataVersion": {"counter": 1, "timestamp": 1}, "topicConfigTable": table}
    body = json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})
    return Command(RequestCode.REGISTER_BROKER, ext, body.encode())
