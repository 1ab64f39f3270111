"""Processes that keep a store process busy, each in one way, until their input ends.

    python -m benchmarks.protocols.loads NAME ADDRESS

One prints a line when it is at work, and another one at its end: how much it did in a second.
"""

from __future__ import annotations

import asyncio
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import chain, count, takewhile
from types import TracebackType
from typing import Final

import uvloop

from benchmarks.means.child import ROOT
from benchmarks.protocols.calls import send_request
from benchmarks.spark.beside import traffic_block
from rmqstore_spark.client import StoreClient
from rmqstore_spark.reader import Store
from rmqstore_spark.remoting.client import RemotingClient

__all__ = ["PUTS", "SCANS", "SENDERS", "SENDS", "Load"]

PUTS: Final = "puts"
SCANS: Final = "scans"
SENDS: Final = "sends"

SENDERS: Final = 16
"""Connections that send, each of which waits for its answers."""
_PATIENCE: Final = 30.0


class Load:
    """A process that keeps a store process busy in a `with` block.

    Args:
        name: how: PUTS of blocks through the endpoint, SCANS of the whole log through it, one after
            the other, or single SENDS over remoting.
        address: the store process's endpoint, or its broker's address.

    Attributes:
        rate: what it did in a second, as text, once the block has ended.
    """

    def __init__(self, name: str, address: str) -> None:
        self.rate = ""
        self._command = [sys.executable, "-m", "benchmarks.protocols.loads", name, address]

    def __enter__(self) -> Load:
        self._process = subprocess.Popen(
            self._command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            self._line()
        except BaseException:
            self._process.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._process as process:
            if kind is not None:
                process.kill()
                return
            assert process.stdin is not None  # noqa: S101 - it is a pipe
            process.stdin.close()
            self.rate = self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        if not select.select([self._process.stdout], [], [], _PATIENCE)[0]:
            raise SystemExit(f"{' '.join(self._command)} has said nothing for {_PATIENCE:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(self._command)} has ended with an error")
        return line.strip()


class _Tally:
    """Counts what a process does until its input ends."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._begun = 0.0
        self._done = 0
        threading.Thread(target=self._await_end, daemon=True).start()

    @property
    def is_wanted(self) -> bool:
        """Whether to continue."""
        return not self._over.is_set()

    @property
    def rate(self) -> float:
        """How much was done in a second since the first of it."""
        return self._done / (time.perf_counter() - self._begun)

    def add(self, done: int) -> None:
        """Count something that was done."""
        if not self._begun:
            self._begun = time.perf_counter()
            print("at work", flush=True)
        else:
            self._done += done

    def _await_end(self) -> None:
        sys.stdin.read()
        self._over.set()


def _put(endpoint: str, tally: _Tally) -> None:
    block = traffic_block()
    with StoreClient(endpoint) as client, client.put_stream() as stream:
        while tally.is_wanted:
            stream.send(block)
            tally.add(len(block))


def _scan(endpoint: str, tally: _Tally) -> None:
    with Store.open(endpoint) as store:
        scans = chain.from_iterable(store.scan() for _ in count())
        for batch in takewhile(lambda _: tally.is_wanted, scans):
            tally.add(len(batch))


def _send(address: str, tally: _Tally) -> None:
    uvloop.run(_send_all(address, tally))


async def _send_all(address: str, tally: _Tally) -> None:
    await asyncio.gather(*(_send_one_by_one(address, tally) for _ in range(SENDERS)))


async def _send_one_by_one(address: str, tally: _Tally) -> None:
    async with await RemotingClient.connect(address, seconds=_PATIENCE) as client:
        for number in takewhile(lambda _: tally.is_wanted, count()):
            await client.ask_for(send_request(number), _PATIENCE)
            tally.add(1)


_WORK: Final[dict[str, tuple[Callable[[str, _Tally], None], float, str]]] = {
    PUTS: (_put, 1e6, "MB/s"),
    SCANS: (_scan, 1.0, "rows/s"),
    SENDS: (_send, 1.0, "msg/s"),
}


def main(name: str, address: str) -> None:
    """Keep the store process busy; see this module."""
    work, unit, text = _WORK[name]
    tally = _Tally()
    work(address, tally)
    print(f"{tally.rate / unit:,.0f} {text}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
