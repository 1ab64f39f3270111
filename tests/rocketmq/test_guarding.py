"""A store has one writer, ours or a RocketMQ broker: promise 7 (docs/reliability.md)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from rmqstore_spark.client import StoreClient
from rmqstore_spark.files.names import GUARD_NAME
from tests.cli.processes import run
from tests.datasource.sink.serving import Served
from tests.rocketmq.processes import Broker, Client
from tests.rocketmq.reading import bodies_of
from tests.support.processes.serving import StoreProcess, block_of

Brokers = Callable[..., Broker]
TOPIC = "orders"
_OF_A_BROKER = ("consumerOffset", "consumerFilter", "timerwheel", "timercheck")
BODIES = [f"message-{n}".encode() * 10 for n in range(3000)]


def put(served: Served) -> None:
    """Put the messages, all into one queue."""
    with served.client() as client:
        client.open([TOPIC])
        with client.put_stream() as stream:
            assert stream.put(block_of(BODIES, TOPIC)).is_ok
        client.flush()
    served.rows(TOPIC, least=len(BODIES))


def digests(path: Path) -> dict[str, str]:
    """The files of a store, and what is in them.

    Without two of consumers that a broker writes as it found them whenever it ends, and those of
    timers that one of 5.3 creates before it loads the log.
    """
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in path.rglob("*")
        if file.is_file() and file.name.partition(".")[0] not in _OF_A_BROKER
    }


def require_kept_out(broker: Broker) -> None:
    """A broker must end by itself, since it cannot load the log."""
    with ExitStack() as cleanup:
        cleanup.push(broker)
        assert broker.ended() in (253, 255)  # of 4.9, and of 5.3
    assert f"{GUARD_NAME}\t" in broker.log
    assert "load commit log Failed" in broker.log


def test_a_broker_is_kept_out_of_a_store_of_ours_and_after_a_kill(
    served: Served, client: Client, broker: Brokers
) -> None:
    put(served)
    before = digests(served.path)
    require_kept_out(broker(served.path))
    assert digests(served.path) == before

    served.process.kill()
    require_kept_out(broker(served.path))
    assert digests(served.path) == before

    done = run("recover", served.path)
    assert done.returncode == 0, done.stderr
    with broker(served.path) as running:
        assert bodies_of(client.pull(TOPIC)) == BODIES
        running.stop()


def test_our_process_is_kept_out_of_a_store_of_a_broker_until_that_has_ended(
    client: Client, broker: Brokers, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    with broker(path, sendMessageThreadPoolNums=2) as running:
        serve = ("serve", "--config", running.settings, "--port", "0")
        client.ask("topic", TOPIC, 1, 1, 6)
        client.ask("send", TOPIC, 0, 100, "before-", 0)
        for command in (serve, ("recover", path)):
            done = run(*command)
            assert done.returncode == 2
            assert "a RocketMQ broker or another store process" in done.stderr
        client.ask("send", TOPIC, 0, 100, "after-", 0)
        assert len(client.pull(TOPIC)) == 200
        running.stop()
    with StoreProcess(path, tmp_path, f"--config={running.settings}") as process:
        with StoreClient(process.endpoint) as ours:
            assert TOPIC in ours.topics()
        # A key of the broker's that means nothing here.
        assert "only a broker uses: sendMessageThreadPoolNums." in process.output
