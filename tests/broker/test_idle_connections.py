"""Connections on which nothing comes: they cost little, and nobody waits for them."""

from __future__ import annotations

import asyncio
import resource
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from rmqstore_spark.remoting.client import RemotingClient
from tests.broker.broker import message
from tests.support.processes.ports import free_port
from tests.support.processes.serving import StoreProcess
from tests.support.waiting import eventually

_COUNT = 10_000
_FILES = _COUNT + 1_000
_MOST_MEMORY = 100 << 20
_MOST_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
_LONG = 60.0


@pytest.mark.threat("Resource limits")
@pytest.mark.skipif(
    _MOST_FILES != resource.RLIM_INFINITY and _MOST_FILES < _FILES,
    reason=f"this machine lets a process open {_MOST_FILES} files",
)
def test_ten_thousand_idle_connections(tmp_path: Path) -> None:
    port, before = free_port(), resource.getrlimit(resource.RLIMIT_NOFILE)
    settings = ("--set=clients=all", f"--set=listenPort={port}", "--set=vipListenPort=0")
    with ExitStack() as ends:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], _FILES), before[1]))
        ends.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        served = ends.enter_context(StoreProcess(tmp_path / "store", tmp_path, *settings))
        served.ready()
        pid = served.process.pid
        _send(port)
        memory, files = _memory(pid), _files(pid)
        idle = ends.enter_context(ExitStack())
        for _ in range(_COUNT):
            idle.enter_context(socket.create_connection(("127.0.0.1", port), _LONG))
        eventually(lambda: _files(pid) >= _COUNT, _LONG)
        _send(port)
        assert _memory(pid) - memory < _MOST_MEMORY
        idle.close()
        eventually(lambda: _files(pid) < files + 100, _LONG)
        _send(port)


def _send(port: int) -> None:
    """Send a message, as any other client."""

    async def work() -> None:
        async with await RemotingClient.connect(f"127.0.0.1:{port}", seconds=_LONG) as client:
            await client.ask_for(message(b"x"), _LONG)

    asyncio.run(work())


def _memory(pid: int) -> int:
    """Resident bytes of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _files(pid: int) -> int:
    """How many files a process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
