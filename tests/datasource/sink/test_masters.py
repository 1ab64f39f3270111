"""The sink, given the replicas of a store: it writes to the one that is the master."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.base.types import WriterId
from rmqstore_spark.client import StoreClient
from rmqstore_spark.datasource.options.parsing import SinkOptions, parse_sink_options
from rmqstore_spark.datasource.sink.commit import commit_stages
from rmqstore_spark.datasource.sink.targets import find_targets
from rmqstore_spark.errors import OptionError, RefusedError, ServiceError
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.options import ReadOptions
from tests.datasource.pair import Pair
from tests.datasource.sink.test_sink_attempts import QUERY, SCHEMA, attempt
from tests.support.processes.serving import StoreProcess

WRITER = WriterId.of_stream(QUERY, 0)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(tmp_path, stack)


def planned(pair: Pair, **given: Any) -> SinkOptions:
    """What a micro-batch is planned with."""
    named = {"endpoint": pair.endpoint, "topic": "orders", "requestTimeout": "3s", **given}
    return find_targets(parse_sink_options(named, streaming=True), SCHEMA, streaming=True)


def exchange_roles(pair: Pair) -> None:
    first, second = (StoreClient(pair.processes[name].endpoint) for name in ("first", "second"))
    with first, second:
        pair.follower_has_all()
        first.demote("127.0.0.1:1")
        second.promote(force=True)


def rows_at(pair: Pair, name: str) -> list[bytes]:
    with Store.open(pair.processes[name].endpoint) as store:
        batches = list(store.scan(ReadOptions(columns=("topic", "body"))))
    rows = [row for batch in batches for row in batch.to_pylist()]
    return sorted(row["body"] for row in rows if row["topic"] == "orders")


def expected(*ranges: range) -> list[bytes]:
    return sorted(f"row-{n}".encode() for rows in ranges for n in rows)


def test_batches_go_to_whichever_is_the_master(pair: Pair) -> None:
    options = planned(pair)
    assert options.target.connection.endpoints == (pair.processes["first"].endpoint,)
    done = attempt(options, range(40))
    commit_stages(options.target.connection, options.delivery, WRITER, [done])
    exchange_roles(pair)
    options = planned(pair)
    assert options.target.connection.endpoints == (pair.processes["second"].endpoint,)
    done = attempt(options, range(40, 70), batch=1)
    later = WriterId.of_stream(QUERY, 1)
    commit_stages(options.target.connection, options.delivery, later, [done])
    assert rows_at(pair, "second") == expected(range(70))


def test_a_commit_whose_answer_was_lost_is_found_at_the_new_master(pair: Pair) -> None:
    options = planned(pair)
    connection, delivery = options.target.connection, options.delivery
    done = attempt(options, range(40))
    commit_stages(connection, delivery, WRITER, [done])
    exchange_roles(pair)
    commit_stages(connection, delivery, WRITER, [done])  # Spark repeats it
    pair.processes["first"].signal(signal.SIGKILL)
    commit_stages(replace(connection, retries=0), delivery, WRITER, [done])
    assert rows_at(pair, "second") == expected(range(40))


def test_a_batch_that_the_new_master_has_not_got_is_written_again(pair: Pair) -> None:
    options = planned(pair)
    done = attempt(options, range(40))  # staged, at the former master
    exchange_roles(pair)
    with pytest.raises(RefusedError, match="stage"):
        commit_stages(options.target.connection, options.delivery, WRITER, [done])
    again = planned(pair)  # the query was restarted
    done = attempt(again, range(40))
    commit_stages(again.target.connection, again.delivery, WRITER, [done])
    assert rows_at(pair, "second") == expected(range(40))


def test_a_replica_that_hangs_is_passed_over(pair: Pair) -> None:
    exchange_roles(pair)
    pair.processes["first"].signal(signal.SIGSTOP)
    try:
        options = planned(pair)
    finally:
        pair.processes["first"].signal(signal.SIGCONT)
    assert options.target.connection.endpoints == (pair.processes["second"].endpoint,)


def test_without_a_master_nothing_is_written(pair: Pair) -> None:
    with StoreClient(pair.processes["first"].endpoint) as first:
        first.demote("127.0.0.1:1")
    with pytest.raises(ServiceError, match=r"No replica of a store takes writes.*is a slave"):
        planned(pair)


def test_two_masters_are_refused(pair: Pair) -> None:
    with StoreClient(pair.processes["second"].endpoint) as second:
        second.promote(force=True)
    with pytest.raises(ServiceError, match="Several replicas of a store take writes"):
        planned(pair)


def test_replicas_of_different_stores_are_refused(pair: Pair, tmp_path: Path) -> None:
    place = tmp_path / "other"
    place.mkdir()
    with StoreProcess(place / "store", place, "--set=brokerName=broker-b") as other:
        other.ready()
        both = f"{pair.processes['first'].endpoint}|{other.endpoint}"
        with pytest.raises(OptionError, match="as replicas of one store"):
            planned(pair, endpoint=both)
