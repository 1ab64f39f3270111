"""Rounds with a master and a follower, each a process, and a client that writes; see `writer`."""

from __future__ import annotations

import random
import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from rmqstore_spark.engine.failpoints import NAMES
from tests.fault.claims import Claims
from tests.fault.remote import RemoteWriter, serve
from tests.fault.rounds.life import settle
from tests.fault.rounds.writer import Tally
from tests.ha.peers import log_bytes
from tests.support.processes.ports import free_port
from tests.support.processes.serving import StoreProcess, eventually

__all__ = ["replication_kills"]

_ROUNDS_PER_PAIR: Final = 20
_PLACES: Final = tuple(name for name in NAMES if name.startswith("replica."))
_PATIENCE_S: Final = 120.0


class _Pair:
    """A SYNC_MASTER and a follower that counts, which are killed and started again.

    Args:
        folder: for both stores.
    """

    def __init__(self, folder: Path) -> None:
        self.master, self.slave = folder / "master" / "store", folder / "slave" / "store"
        for store in (self.master, self.slave):
            store.parent.mkdir(parents=True)
        self.port, self._ha_port = free_port(), free_port()
        self._running: dict[Path, StoreProcess] = {}
        self._ends = ExitStack()

    def __enter__(self) -> _Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def start(self, store: Path, failpoint: str = "") -> None:
        """Start one of both, and wait until it serves."""
        if store == self.master:
            port = f"haListenPort={self._ha_port}"
            process = serve(store, self.port, "brokerRole=SYNC_MASTER", port, "slaveTimeout=2000")
        else:
            master = f"haMasterAddress=127.0.0.1:{self._ha_port}"
            settings = ("brokerRole=SLAVE", master, "haAcknowledge=true")
            process = serve(store, 0, *settings, environment={"RMQSTORE_FAILPOINT": failpoint})
        self._running[store] = self._ends.enter_context(process)
        if not failpoint:
            process.ready()

    def kill(self, store: Path) -> None:
        """Kill one of both, unless it has reached its failpoint."""
        process = self._running.pop(store)
        process.signal(signal.SIGKILL)
        process.process.wait()

    def has_ended(self, store: Path) -> bool:
        """Whether one of both has reached its failpoint."""
        return self._running[store].process.poll() is not None

    def output(self) -> str:
        """What the running ones have printed."""
        return "\n".join(process.output for process in self._running.values())

    def difference(self) -> str:
        """Why the follower's log is not the beginning of its master's; both are down."""
        held = _whole(self.slave)
        whole = log_bytes(self.master, 0, len(held)) if held else b""
        return "" if held == whole else f"the follower's log of {len(held)} bytes differs"


def replication_kills(folder: Path, rounds: int, *, first_seed: int = 0) -> Tally:
    """Kill master, follower or both, at random and at named places, while a client writes.

    In the end the master is lost: what it had acknowledged must be at the follower.
    """
    tally = Tally()
    for begin in range(0, rounds, _ROUNDS_PER_PAIR):
        claims = Claims()
        count = min(_ROUNDS_PER_PAIR, rounds - begin)
        with _Pair(folder / f"pair-{begin}") as pair:
            others = _rounds(pair, claims, count, first_seed + begin)
            tally.others += others
        settle(pair.slave)
        tally.add(claims.compare(pair.slave))
        tally.rounds += count
        tally.faults += count
        tally.acknowledged += claims.acknowledged
    return tally


def _rounds(pair: _Pair, claims: Claims, count: int, seed: int) -> tuple[str, ...]:
    drawn, end = random.Random(seed), threading.Event()
    endpoint = f"grpc://127.0.0.1:{pair.port}"
    writer = RemoteWriter(endpoint, claims, patience_s=2 * _PATIENCE_S)
    pair.start(pair.master)
    pair.start(pair.slave)
    writer.make_topics()
    found = []
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(writer.write_until, end, seed)
        try:
            for _ in range(count):
                time.sleep(drawn.uniform(0, 1.0))
                what = drawn.choice(("slave", "place", "master", "both"))
                if what == "place":
                    pair.kill(pair.slave)
                    pair.start(pair.slave, f"{drawn.choice(_PLACES)}:{drawn.randint(1, 5)}")
                    eventually(partial(pair.has_ended, pair.slave), _PATIENCE_S)
                pair.kill(pair.slave)
                if what in ("master", "both"):
                    pair.kill(pair.master)
                    found.append(pair.difference())
                    pair.start(pair.master)
                pair.start(pair.slave)
                writer.served_since = time.monotonic()
                before = claims.acknowledged
                eventually(partial(_is_going_on, claims, before, writing), _PATIENCE_S)
        except AssertionError:
            found.append(pair.output())
            raise AssertionError(found) from None
        finally:
            end.set()
        writing.result()
    pair.kill(pair.master)
    pair.kill(pair.slave)
    found.append(pair.difference())
    return tuple(filter(None, found))


def _is_going_on(claims: Claims, acknowledged: int, writing: Future[None]) -> bool:
    """Whether more has been acknowledged, or the client has failed."""
    return claims.acknowledged > acknowledged or writing.done()


def _whole(store: Path) -> bytes:
    """The log of a store that is down, up to its last byte that is not zero."""
    ends = sorted(path for path in (store / "commitlog").iterdir() if path.name.isdecimal())
    return b"".join(path.read_bytes() for path in ends).rstrip(b"\0")
