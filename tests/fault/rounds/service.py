"""Rounds with the real store process and its clients; see `writer`."""

from __future__ import annotations

import random
import signal
import threading
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from rmqstore_spark.client import StoreClient
from rmqstore_spark.errors import ServiceError
from tests.fault.claims import Claims
from tests.fault.messages import block
from tests.fault.proxy import BreakingProxy
from tests.fault.remote import RemoteWriter, request_of, serve, stage
from tests.fault.rounds.writer import Tally
from tests.support.processes.ports import free_port
from tests.support.processes.serving import StoreProcess, eventually

__all__ = ["cut_connections", "lost_answers", "service_kills"]

_ROUNDS_PER_STORE = 20
_ANSWER_S = 60


def service_kills(folder: Path, rounds: int, flush: str) -> Tally:
    """Kill a store process at random moments, again and again, while a client writes."""
    tally = Tally()
    for begin in range(0, rounds, _ROUNDS_PER_STORE):
        store = folder / f"service-{begin}" / "store"
        store.parent.mkdir()
        claims = Claims()
        _kill_again_and_again(store, claims, min(_ROUNDS_PER_STORE, rounds - begin), flush, begin)
        tally.rounds += min(_ROUNDS_PER_STORE, rounds - begin)
        tally.acknowledged += claims.acknowledged
        tally.add(claims.compare(store))
    tally.faults = tally.rounds
    return tally


def _kill_again_and_again(store: Path, claims: Claims, kills: int, flush: str, seed: int) -> None:
    port, drawn, end = free_port(), random.Random(f"{flush}{seed}"), threading.Event()
    writer = RemoteWriter(f"rmq://127.0.0.1:{port}", claims)
    with ThreadPoolExecutor(1) as threads:
        writing = None
        try:
            for turn in range(kills + 1):
                with serve(store, port, f"flushDiskType={flush}") as process:
                    process.ready()
                    writer.served_since = time.monotonic()
                    if writing is None:
                        writer.make_topics()
                        writing = threads.submit(writer.write_until, end, seed)
                    if turn < kills:
                        time.sleep(drawn.uniform(0, 1.0))
                        process.signal(signal.SIGKILL)
                        process.process.wait()
                        continue
                    eventually(partial(_is_going_on, claims, claims.acknowledged, writing))
                    end.set()
                    writing.result()
                    _close(process)
        finally:
            end.set()
    assert writer.failures > 0


def _is_going_on(claims: Claims, acknowledged: int, writing: Future[None]) -> bool:
    """Whether more has been acknowledged, or the client has failed."""
    return claims.acknowledged > acknowledged or writing.done()


def lost_answers(folder: Path, rounds: int) -> Tally:
    """Lose the answers to commits, which clients ask for again, and to puts, which they do not."""
    store, claims = folder / "store", Claims()
    with serve(store) as process, ThreadPoolExecutor(1) as threads:
        RemoteWriter(process.endpoint, claims).make_topics()
        with (
            BreakingProxy(_port(process)) as proxy,
            StoreClient(process.endpoint) as direct,
            StoreClient(proxy.endpoint, timeout_s=20, retries=6) as client,
        ):
            for number in range(rounds):
                lose = _lose_a_put if number % 2 else _lose_a_commit
                lose(claims, proxy, direct, client, threads)
        _close(process)
    return _tally(claims, store, rounds, rounds)


def _lose_a_commit(
    claims: Claims,
    proxy: BreakingProxy,
    direct: StoreClient,
    client: StoreClient,
    threads: Executor,
) -> None:
    first, commits = claims.next_number, direct.stats()["commits"]
    claims.begin("commit", first, 400)
    request = request_of(first, stage(client, first, 400))
    proxy.drop_answers()
    committing = threads.submit(client.commit, request)
    eventually(lambda: direct.stats()["commits"] == commits + 1)
    proxy.cut()
    assert committing.result(_ANSWER_S).status == "ALREADY_COMMITTED"
    claims.done("commit", first)


def _lose_a_put(
    claims: Claims,
    proxy: BreakingProxy,
    direct: StoreClient,
    client: StoreClient,
    threads: Executor,
) -> None:
    first = claims.next_number
    with client.put_stream() as stream:
        claims.begin("put", first, 60)
        assert stream.put(block(first, 60)).is_ok
        claims.done("put", first)
        messages = direct.stats()["putMessages"]
        claims.begin("put", first + 60, 60)
        proxy.drop_answers()
        putting = threads.submit(stream.put, block(first + 60, 60))
        eventually(lambda: direct.stats()["putMessages"] == messages + 60)
        proxy.cut()
        error = putting.exception(_ANSWER_S)
        assert isinstance(error, ServiceError), error
        assert "connection" in str(error)
        stream.close()
        # The store has it, and the client does not know: it must be there, and only once.
        claims.done("put", first + 60)


def cut_connections(folder: Path, rounds: int) -> Tally:
    """Cut connections after any number of bytes, in each direction, while a client continues."""
    store, claims, drawn = folder / "store", Claims(), random.Random(1)
    with serve(store) as process, BreakingProxy(_port(process)) as proxy:
        writer = RemoteWriter(proxy.endpoint, claims)
        writer.make_topics()
        for _ in range(rounds):
            direction = drawn.choice(("up", "down"))
            most = 60_000 if direction == "up" else 2_000
            proxy.cut_after(direction, int(most ** drawn.random()))
            writer.commit(drawn.choice((2, 60)))
            writer.put(drawn.choice((1, 60)))
        cuts = proxy.cuts
        _close(process)
    return _tally(claims, store, rounds, cuts)


def _close(process: StoreProcess) -> None:
    process.signal(signal.SIGTERM)
    assert process.wait() == 0


def _port(process: StoreProcess) -> int:
    return int(process.endpoint.rpartition(":")[2])


def _tally(claims: Claims, store: Path, rounds: int, faults: int) -> Tally:
    tally = Tally(rounds, faults, claims.acknowledged)
    tally.add(claims.compare(store))
    return tally
