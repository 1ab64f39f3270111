"""Clients that stage and commit batches, and a store process that is killed."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from rmqstore_spark.engine.failpoints import NAMES
from tests.fault.claims import CLIENT, Claims, compare_all
from tests.fault.remote import RemoteWriter, serve
from tests.fault.rounds.writer import Tally
from tests.support.processes.ports import free_port
from tests.support.processes.serving import StoreProcess, eventually

__all__ = ["IN_FILES", "IN_MEMORY", "staging_kills"]

IN_MEMORY: Final = "stagingMemoryBytes=400000000"
"""All that these clients stage stays in memory."""
IN_FILES: Final = "stagingMemoryBytes=2000"
"""Hardly any of it does."""

_CLIENTS: Final = 3
_ROUNDS_PER_STORE: Final = 20
_PLACES: Final = tuple(
    name
    for name in NAMES
    if name.startswith(("stage.", "commit.", "ledger.", "roll.", "flush.", "recovery."))
)
_AT_A_PLACE: Final = 0.6
_LONGEST_S: Final = 1.0
_REACHED_S: Final = 4.0
_PATIENCE_S: Final = 240.0


def staging_kills(folder: Path, rounds: int, memory: str, *, first_seed: int = 0) -> Tally:
    """Kill a store process, at random and at named places, while clients commit batches.

    Args:
        folder: for the stores.
        rounds: how often.
        memory: the setting that says where stages are.
        first_seed: of what is done.
    """
    tally = Tally()
    for begin in range(0, rounds, _ROUNDS_PER_STORE):
        store = folder / f"staging-{begin}" / "store"
        store.parent.mkdir(parents=True)
        count = min(_ROUNDS_PER_STORE, rounds - begin)
        clients = [Claims(number * CLIENT) for number in range(_CLIENTS)]
        _kill_again_and_again(store, clients, count, memory, first_seed + begin)
        tally.add(compare_all(store, clients))
        tally.rounds += count
        tally.faults += count
        tally.acknowledged += sum(claims.acknowledged for claims in clients)
    return tally


def _kill_again_and_again(
    store: Path, clients: Sequence[Claims], kills: int, memory: str, seed: int
) -> None:
    port, drawn, end = free_port(), random.Random(seed), threading.Event()
    writers = [
        RemoteWriter(
            f"rmq://127.0.0.1:{port}", claims, patience_s=_PATIENCE_S, query=f"query-{number}"
        )
        for number, claims in enumerate(clients)
    ]
    writing: list[Future[None]] = []
    with ThreadPoolExecutor(_CLIENTS) as threads:
        try:
            for turn in range(kills + 1):
                is_last = turn == kills
                place = "" if turn == 0 or is_last else _place(drawn)
                with serve(
                    store, port, memory, environment={"RMQSTORE_FAILPOINT": place}
                ) as process:
                    if place:
                        _await_death(process)
                        continue
                    process.ready()
                    for writer in writers:
                        writer.served_since = time.monotonic()
                    if not writing:
                        writers[0].make_topics()
                        writing += [
                            threads.submit(_write_until, end, writer, seed + number)
                            for number, writer in enumerate(writers)
                        ]
                    if not is_last:
                        time.sleep(drawn.uniform(0, _LONGEST_S))
                        _kill(process)
                        continue
                    for claims, future in zip(clients, writing, strict=True):
                        before = claims.acknowledged
                        eventually(partial(_goes_on, claims, before, future), _PATIENCE_S)
                    end.set()
                    for future in writing:
                        future.result()
                    process.signal(signal.SIGTERM)
                    assert process.wait() == 0, process.output
        finally:
            end.set()


def _place(drawn: random.Random) -> str:
    if drawn.random() > _AT_A_PLACE:
        return ""
    return f"{drawn.choice(_PLACES)}:{drawn.randint(1, 6)}"


def _await_death(process: StoreProcess) -> None:
    """Wait until it has reached its failpoint; if it does not get there, kill it."""
    with suppress(subprocess.TimeoutExpired):
        process.process.wait(_REACHED_S)
    _kill(process)


def _kill(process: StoreProcess) -> None:
    process.signal(signal.SIGKILL)
    assert process.process.wait() == -signal.SIGKILL, process.output


def _write_until(end: threading.Event, writer: RemoteWriter, seed: int) -> None:
    """Commit batches, and leave some staged."""
    drawn = random.Random(seed)
    while not end.is_set():
        write = writer.commit if drawn.random() < 0.8 else writer.abandon
        write(drawn.choice((2, 60, 400, 1500)))


def _goes_on(claims: Claims, acknowledged: int, writing: Future[None]) -> bool:
    """Whether more has been acknowledged, or the client has failed."""
    return claims.acknowledged > acknowledged or writing.done()
