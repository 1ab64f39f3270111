"""A master and a follower, each a process, and a client that writes."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from rmqstore_spark.client import StoreClient
from rmqstore_spark.engine.failpoints import NAMES
from rmqstore_spark.errors import RmqStoreError
from tests.fault.claims import Outcome, compare_all
from tests.fault.remote import Restarted, Writers
from tests.fault.rounds.driver import Scene
from tests.fault.rounds.life import settle
from tests.ha.peers import log_bytes, log_files
from tests.support.processes.ports import free_port

_PLACES: Final = tuple(name for name in NAMES if name.startswith("replica."))
_WRITING: Final = ("put", "stage", "commit", "roll", "flush", "queues", "checkpoint")
_EXPIRED_EVERY_S: Final = 0.2
_EXPIRED_SOON: Final = (
    "cleanResourceInterval=100", "deleteCommitLogFilesInterval=0", "deletePhysicFilesBatchMax=50",
)  # fmt: skip
_MAGIC_SIZE: Final = 4
_PATIENCE_S: Final = 120.0
_STANDS_STILL_S: Final = 0.5
_AT_A_PLACE_S: Final = 3.0
"""A master that has not got to its failpoint by then is killed wherever it is."""


@dataclass(kw_only=True)
class Replication(Scene):
    """A SYNC_MASTER, a follower that counts, or both are killed, at random and at named places.

    In the end the master is lost: what it had acknowledged must be at the follower, whose log is
    the beginning of the master's.

    Attributes:
        expires: the master's segments are removed once they are in its archive; master and archive
            must hold all together, too.
    """

    expires: bool = False

    def begin(self) -> None:
        master, slave = self.folder / "master" / "store", self.folder / "slave" / "store"
        ha_port = free_port()
        self._archives = [self.folder / "archive"] if self.expires else []
        self._master = Restarted(
            self.ends, master, free_port(), "brokerRole=SYNC_MASTER", f"haListenPort={ha_port}",
            "slaveTimeout=2000", *_EXPIRED_SOON, *(f"archiveTo={one}" for one in self._archives),
        )  # fmt: skip
        self._slave = Restarted(
            self.ends, slave, 0, "brokerRole=SLAVE", f"haMasterAddress=127.0.0.1:{ha_port}",
            "haAcknowledge=true",
        )  # fmt: skip
        rooms = (*_WRITING, *["expiry"] * self.expires)
        self._kills = ["slave", "master", "slave and master"]
        self._kills += [f"slave at {name}" for name in _PLACES]
        self._kills += [f"master at {name}" for name in NAMES if name.partition(".")[0] in rooms]
        self._master.start()
        self._slave.start()
        endpoint = f"rmq://127.0.0.1:{self._master.port}"
        self._writers = Writers(self.ends, endpoint)
        self.told = self._writers.claims
        self._writers.begin(self.seed)
        self._expiring = threading.Thread(target=self._expire_until_over, args=(endpoint,))
        if self.expires:
            self._expiring.start()

    def round(self, number: int, seed: int) -> bool:
        """Kill one or both, and start them again: the client continues.

        All rounds of a run take all kinds of kills, in an order of the run.
        """
        time.sleep(self.drawn.uniform(0, 1.0))
        turn, at = divmod(number, len(self._kills))
        order = Random(seed - number + turn).sample(self._kills, len(self._kills))
        self.done.append(order[at])
        what, _, place = self.done[-1].partition(" at ")
        both = {"slave": self._slave, "master": self._master}
        killed = [each for name, each in both.items() if name in what]
        for each in killed:
            each.kill()
        if place:
            is_slave = killed[0] is self._slave
            failpoint = f"{place}:{self.drawn.randint(1, 5)}"
            died = killed[0].die_at(failpoint, _PATIENCE_S if is_slave else _AT_A_PLACE_S)
            assert died or not is_slave, f"the follower does not get to {failpoint}"
        if len(killed) == 2:
            self._compare_logs()
        for each in killed:
            each.start()
        self._writers.is_served()
        self._writers.wait_for_more()
        return True

    def finish(self) -> Outcome:
        """Lose the master while the client writes, and the follower stands still.

        Nothing is acknowledged then; on one machine, a follower has caught up in no time.
        """
        assert self._slave.process is not None
        self._slave.process.signal(signal.SIGSTOP)
        time.sleep(_STANDS_STILL_S)
        self._master.kill()
        claims = deepcopy(self._writers.claims)
        self._slave.kill()
        self._compare_logs()
        lost = Path(shutil.copytree(self._slave.store, self.folder / "lost" / "store"))
        settle(lost)
        outcome = compare_all(lost, claims)
        for each in (self._master, self._slave):  # what the client writes must come to an end
            each.start()
        self._writers.is_served()
        self._writers.end()
        if self.expires:
            self._expiring.join()
        self._master.kill()
        self._slave.kill()
        self._compare_logs()
        if self._archives:
            settle(self._master.store)
            self.tally.add(compare_all(self._master.store, self._writers.claims, *self._archives))
        settle(self._slave.store)
        self.tally.add(compare_all(self._slave.store, self._writers.claims))
        return outcome

    def _compare_logs(self) -> None:
        """Note if the follower's log is not the beginning of its master's; both are down.

        Of what the master has removed, nothing is compared.
        """
        master = self._master.store
        begin = min(map(int, log_files(master)))
        held = bytearray(_whole(self._slave.store)[begin:])
        whole = log_bytes(master, begin, begin + len(held)) if held else b""
        at = _first_difference(held, whole)
        magic = slice(at, at + _MAGIC_SIZE)
        if at >= 0 and not any(held[magic]):  # a batch of which not all has come is hidden there
            held[magic] = whole[magic]
        if held != whole:
            self.tally.others += (f"the follower's log of {len(held)} bytes differs",)

    def _expire_until_over(self, endpoint: str) -> None:
        """Let the master remove what it has acknowledged, which the follower therefore has."""
        client, over = StoreClient(endpoint, timeout_s=5.0, retries=2), self._writers.is_over
        while not over.wait(_EXPIRED_EVERY_S):
            before, acknowledged = time.time_ns() // 1_000_000, self.acknowledged
            while self.acknowledged == acknowledged and not over.wait(_EXPIRED_EVERY_S):
                pass
            with suppress(RmqStoreError):
                client.expire(before, remove=True)


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """The first position at which two differ; -1: there is none."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), -1)


def _whole(store: Path) -> bytes:
    """The log of a store that is down, up to its last byte that is not zero."""
    return b"".join(data for _, data in sorted(log_files(store).items())).rstrip(b"\0")
