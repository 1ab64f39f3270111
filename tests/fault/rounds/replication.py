"""Rounds with a master and a follower, each a process, and a client that writes; see `writer`."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from rmqstore_spark.client import StoreClient
from rmqstore_spark.engine.failpoints import NAMES
from rmqstore_spark.errors import RmqStoreError
from tests.fault.claims import Claims
from tests.fault.remote import RemoteWriter, serve
from tests.fault.rounds.life import settle
from tests.fault.rounds.writer import Tally
from tests.ha.peers import log_bytes, log_files
from tests.support.processes.ports import free_port
from tests.support.processes.serving import StoreProcess, eventually

__all__ = ["replication_kills"]

_ROUNDS_PER_PAIR: Final = 20
_PLACES: Final = tuple(name for name in NAMES if name.startswith("replica."))
_WRITING: Final = ("put", "stage", "commit", "roll", "flush", "queues", "checkpoint")
_EXPIRY: Final = "expiry"
_EXPIRED_EVERY_S: Final = 0.2
_EXPIRED_SOON: Final = (
    "cleanResourceInterval=100", "deleteCommitLogFilesInterval=0", "deletePhysicFilesBatchMax=50",
)  # fmt: skip
_MAGIC_SIZE: Final = 4
_PATIENCE_S: Final = 120.0
_AT_A_PLACE_S: Final = 3.0
"""A master that has not got to its failpoint by then is killed wherever it is."""


class _Pair:
    """A SYNC_MASTER and a follower that counts, which are killed and started again.

    Args:
        folder: for both stores.
        expires: the master's segments are removed once they are in its archive.

    Attributes:
        names: of both, in the order in which they are killed and started.
        archives: of the master.
    """

    def __init__(self, folder: Path, *, expires: bool) -> None:
        self.master, self.slave = folder / "master" / "store", folder / "slave" / "store"
        self.archives = [folder / "archive"] if expires else []
        for store in (self.master, self.slave):
            store.parent.mkdir(parents=True)
        self.names = {self.slave: "slave", self.master: "master"}
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
            settings = ["brokerRole=SYNC_MASTER", port, "slaveTimeout=2000", *_EXPIRED_SOON]
            settings += [f"archiveTo={archive}" for archive in self.archives]
        else:
            master = f"haMasterAddress=127.0.0.1:{self._ha_port}"
            settings = ["brokerRole=SLAVE", master, "haAcknowledge=true"]
        port_of_clients = self.port if store == self.master else 0
        environment = {"RMQSTORE_FAILPOINT": failpoint}
        process = serve(store, port_of_clients, *settings, environment=environment)
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
        """Why the follower's log is not the beginning of its master's; both are down.

        Of what the master has removed, nothing is compared.
        """
        begin = min(map(int, log_files(self.master)))
        held = bytearray(_whole(self.slave)[begin:])
        whole = log_bytes(self.master, begin, begin + len(held)) if held else b""
        at = _first_difference(held, whole)
        magic = slice(at, at + _MAGIC_SIZE)
        if at >= 0 and not any(held[magic]):  # a batch of which not all has come is hidden there
            held[magic] = whole[magic]
        return "" if held == whole else f"the follower's log of {len(held)} bytes differs"


def replication_kills(
    folder: Path, rounds: int, *, expires: bool = False, first_seed: int = 0
) -> Tally:
    """Kill master, follower or both, at random and at their named places, while a client writes.

    In the end the master is lost: what it had acknowledged must be at the follower.

    Args:
        folder: for the stores.
        rounds: how often.
        expires: the master also removes what the follower has, after it has copied that to an
            archive; master and archive must hold all together, too.
        first_seed: of what is done.
    """
    tally = Tally()
    ends = _in_turn(random.Random(first_seed), (*_WRITING, *[_EXPIRY] * expires))
    for begin in range(0, rounds, _ROUNDS_PER_PAIR):
        claims = Claims()
        count = min(_ROUNDS_PER_PAIR, rounds - begin)
        with _Pair(folder / f"pair-{begin}", expires=expires) as pair:
            others = _rounds(pair, claims, islice(ends, count), first_seed + begin)
            tally.others += others
        settle(pair.slave)
        tally.add(claims.compare(pair.slave))
        if pair.archives:
            settle(pair.master)
            tally.add(claims.compare(pair.master, *pair.archives))
        tally.rounds += count
        tally.faults += count
        tally.acknowledged += claims.acknowledged
    return tally


def _in_turn(drawn: random.Random, rooms: Collection[str]) -> Iterator[str]:
    """Yield who is killed, and at which failpoint, in a random order, again and again.

    Args:
        drawn: the order.
        rooms: what of the master has the failpoints.
    """
    ends = ["slave", "master", "slave and master"]
    ends += [f"slave at {name}" for name in _PLACES]
    ends += [f"master at {name}" for name in NAMES if name.partition(".")[0] in rooms]
    while True:
        yield from drawn.sample(ends, len(ends))


def _rounds(pair: _Pair, claims: Claims, ends: Iterable[str], seed: int) -> tuple[str, ...]:
    drawn, done = random.Random(seed), threading.Event()
    endpoint = f"rmq://127.0.0.1:{pair.port}"
    writer = RemoteWriter(endpoint, claims, patience_s=2 * _PATIENCE_S)
    pair.start(pair.master)
    pair.start(pair.slave)
    writer.make_topics()
    found = []
    with ThreadPoolExecutor(2) as threads:
        writing = threads.submit(writer.write_until, done, seed)
        expiring = threads.submit(_expire_until, done, endpoint, claims) if pair.archives else None
        try:
            for end in ends:
                time.sleep(drawn.uniform(0, 1.0))
                what, _, place = end.partition(" at ")
                killed = [each for each, name in pair.names.items() if name in what]
                for store in killed:
                    pair.kill(store)
                if place:
                    pair.start(killed[0], f"{place}:{drawn.randint(1, 5)}")
                    is_master = killed[0] == pair.master
                    patience = _AT_A_PLACE_S if is_master else _PATIENCE_S
                    with suppress(AssertionError) if is_master else nullcontext():
                        eventually(partial(pair.has_ended, killed[0]), patience)
                    pair.kill(killed[0])
                if len(killed) == 2:
                    found.append(pair.difference())
                for store in killed:
                    pair.start(store)
                writer.served_since = time.monotonic()
                before = claims.acknowledged
                eventually(partial(_is_going_on, claims, before, writing), _PATIENCE_S)
        except AssertionError:
            found.append(pair.output())
            raise AssertionError(found) from None
        finally:
            done.set()
        writing.result()
        if expiring is not None:
            expiring.result()
    pair.kill(pair.master)
    pair.kill(pair.slave)
    found.append(pair.difference())
    return tuple(filter(None, found))


def _is_going_on(claims: Claims, acknowledged: int, writing: Future[None]) -> bool:
    """Whether more has been acknowledged, or the client has failed."""
    return claims.acknowledged > acknowledged or writing.done()


def _expire_until(done: threading.Event, endpoint: str, claims: Claims) -> None:
    """Let the master remove what it has acknowledged, which the follower therefore has."""
    client = StoreClient(endpoint, timeout_s=5.0, retries=2)
    while not done.wait(_EXPIRED_EVERY_S):
        before, acknowledged = time.time_ns() // 1_000_000, claims.acknowledged
        while claims.acknowledged == acknowledged and not done.wait(_EXPIRED_EVERY_S):
            pass
        with suppress(RmqStoreError):
            client.expire(before, remove=True)


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """The first position at which two differ; -1: there is none."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), -1)


def _whole(store: Path) -> bytes:
    """The log of a store that is down, up to its last byte that is not zero."""
    ends = sorted(path for path in (store / "commitlog").iterdir() if path.name.isdecimal())
    return b"".join(path.read_bytes() for path in ends).rstrip(b"\0")
