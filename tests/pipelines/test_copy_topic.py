"""Copies of a topic, within a store and into another."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmqstore_spark.pipelines.copy_topic import JOB, copy_topic, main
from rmqstore_spark.pipelines.running import run_job
from rmqstore_spark.reader import Store
from tests.broker.broker import broker, name_server, route
from tests.pipelines.replaying import found, wanted
from tests.support.processes.serving import block_of, served, serving_brokers_clients
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.datasource.sink.serving import Served

Golden = Callable[[str], Path]
Capture = pytest.CaptureFixture[str]


def run(session: SparkSession, *command: str) -> int:
    """Run the job in this process's session; returns the exit code."""
    return run_job(lambda: copy_topic(session, JOB.parse(list(command))))


def test_a_topic_is_copied_within_a_store_and_on(
    golden: Golden,
    session: SparkSession,
    serve: Callable[..., Served],
    tmp_path: Path,
    capsys: Capture,
) -> None:
    shutil.copytree(golden("live") / "store", tmp_path / "live")
    live, other = serve("live"), serve("other")
    whole = wanted(golden("live"), "Live")
    orders = {at[1]: rows for at, rows in whole.items() if at[0] == "LiveOrder"}

    assert run(session, str(live.path), "LiveOrder", live.endpoint, "--as", "Copy") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"created topic Copy with 4 queue(s) at {live.endpoint}",
        f"20 message(s) of LiveOrder copied to Copy at {live.endpoint}",
    ]
    assert found(live, ["Copy"]) == {("Copy", at): rows for at, rows in orders.items()}

    # Through the process, and run again.
    once = ("--write", "txnAppId=orders", "--write", "txnVersion=1")
    for _ in range(2):
        assert run(session, live.endpoint, "Copy", other.endpoint, *once) == 0
    assert found(other, ["Copy"]) == {("Copy", at): rows for at, rows in orders.items()}


def brokers_of(servers: str, topic: str) -> int:
    """How many brokers have a topic."""
    told = route(servers, topic)
    return 0 if told is None else len(told["brokerDatas"])


def test_name_servers_find_where_a_topic_is_and_where_its_copy_goes(
    session: SparkSession, tmp_path: Path, capsys: Capture
) -> None:
    """A store process takes the copy as one batch; a broker without an endpoint, as messages."""
    bodies = [b"%d" % number for number in range(50)]
    with name_server(tmp_path) as servers, ExitStack() as stack:
        pulled = stack.enter_context(broker(tmp_path / "a", broker_name="a", namesrv_addr=servers))
        settings = {"broker_name": "b", "clients": "all", "namesrv_addr": servers}
        process = stack.enter_context(served(tmp_path / "b", **settings))
        stack.enter_context(serving_brokers_clients(process))
        pulled.store.create_topic("orders", write_queue_nums=6)
        queues = [number % 6 for number in range(50)]
        assert pulled.store.put(block_of(bodies, "orders", queues)).ok
        pulled.store.flush()
        eventually(
            lambda: brokers_of(servers, "orders") == 1 and brokers_of(servers, "TBW102") == 2
        )
        place = f"namesrv://{servers}"

        def copied(to: str, *more: str) -> int:
            return run(session, place, "orders", place, "--write", f"brokerNames={to}", *more)

        assert copied("b", "--as", "copy") == 0
        assert capsys.readouterr().out.splitlines() == [
            f"created topic copy with 6 queue(s) at {process.endpoint}",
            f"50 message(s) of orders copied to copy at {place}",
        ]
        assert copied("a", "--as", "sent") == 2
        assert "would get, 4 queue(s) at a" in capsys.readouterr().err
        assert copied("a", "--as", "sent", "--write", "queueSelector=hash") == 0
    for path, topic in ((tmp_path / "b", "copy"), (tmp_path / "a", "sent")):
        with Store.open(path) as store:
            rows = [row for part in store.scan() for row in part.to_pylist()]
        found_bodies = [row["body"] for row in rows if row["topic"] == topic]
        assert sorted(found_bodies) == sorted(bodies)


def test_what_is_not_there(
    golden: Golden, session: SparkSession, serve: Callable[..., Served], capsys: Capture
) -> None:
    store, target = str(golden("live") / "store"), serve("target")
    for command, code, words in (
        (["Nothing", target.endpoint], 1, "Topic 'Nothing' does not exist"),
        (["LiveOrder", "rmq://127.0.0.1:1", "--write", "retries=0"], 1, "127.0.0.1:1"),
        (["LiveOrder", target.endpoint, "--subscribe", "a"], 2, "remove --subscribe"),
        (["LiveOrder", target.endpoint, "--as", "a b"], 2, "topic"),
    ):
        assert run(session, store, *command) == code
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert words in line
    assert target.client().topics() == {}


def test_wrong_options_need_no_spark(capsys: Capture) -> None:
    assert main(["/store", "T", "rmq://127.0.0.1:1", "--write", "atomic=perhaps"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
