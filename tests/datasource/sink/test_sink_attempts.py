"""Exactly once: what Spark does with tasks and commits, done by hand on a real store process.

Spark may run a task several times, some of them at once; calls `commit` for a batch at least once;
lets attempts run on after `abort`. In each case the log holds each row of each batch once.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmqstore_spark.base.types import StageInfo, WriterId
from rmqstore_spark.client import StoreClient
from rmqstore_spark.datasource.options.parsing import SinkOptions, parse_sink_options
from rmqstore_spark.datasource.sink.columns import find_columns
from rmqstore_spark.datasource.sink.commit import Place, TaskDone, commit_stages, use_number
from rmqstore_spark.datasource.sink.writers import RmqStoreStreamWriter, RmqStoreWriter, run_task
from rmqstore_spark.errors import (
    OptionError,
    RefusedError,
    RmqStoreError,
    RowError,
    ServiceError,
    TopicNotFoundError,
)
from rmqstore_spark.layout.constants import is_system_topic
from tests.datasource.sink.serving import Served
from tests.datasource.sink.test_sink_columns import fields
from tests.support.processes.serving import Served as ServedHere
from tests.support.processes.serving import served as served_here

QUERY = "6ad3bb2e-6d3f-4e0c-9b0c-3f9a36b1d0aa"
SCHEMA = fields("body string", "keys string")
TOPIC = "orders"
Serve = Callable[..., Served]


def options_for(
    stores: Sequence[Served | ServedHere], streaming: bool = True, **given: Any
) -> SinkOptions:
    endpoints = ",".join(store.endpoint for store in stores)
    texts = {name: str(value) for name, value in given.items()}
    named = {"endpoint": endpoints, "topic": TOPIC, "retries": "2", **texts}
    return parse_sink_options(named, streaming)


def batches(rows: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Rows as Spark hands them over, in several batches."""
    for first in range(0, len(rows), 300):
        part = rows[first : first + 300]
        yield pa.RecordBatch.from_pydict(
            {
                "body": [f"row-{n}" for n in part],
                "keys": [f"key-{n}" if n % 2 else None for n in part],
            },
            pa.schema([("body", pa.string()), ("keys", pa.string())]),
        )


def attempt(
    options: SinkOptions, rows: Sequence[int], partition: int = 0, batch: int = 0
) -> TaskDone:
    """One attempt at a task of a micro-batch."""
    sent: SinkOptions = pickle.loads(pickle.dumps(options))
    place = Place(partition, QUERY, batch)
    columns = find_columns(SCHEMA, sent.messages)
    done = run_task(sent, columns, batches(rows), place, partition + batch, place.micro_batch)
    received: TaskDone = pickle.loads(pickle.dumps(done))
    return received


def commit_done(options: SinkOptions, writer: WriterId, done: Sequence[TaskDone]) -> None:
    """Commit what some tasks have staged."""
    commit_stages(options.target.connection, options.delivery, writer, done)


def stream_writer(options: SinkOptions) -> RmqStoreStreamWriter:
    """Spark makes a new one for each commit."""
    sent: SinkOptions = pickle.loads(pickle.dumps(options))
    return RmqStoreStreamWriter(sent, find_columns(SCHEMA, sent.messages))


def stages_of(done: TaskDone) -> list[StageInfo]:
    return [stage for stages in done.stages.values() for stage in stages]


def bodies(*ranges: range) -> Counter[bytes]:
    return Counter(f"row-{n}".encode() for rows in ranges for n in rows)


# ---- one store ----------------------------------------------------------------------------------


def test_staged_rows_are_not_there_before_the_commit_and_all_there_after_it(
    served: Served,
) -> None:
    options = options_for([served])
    done = [attempt(options, range(n * 1000, n * 1000 + 1000), n) for n in (0, 1)]
    assert served.bodies(TOPIC) == Counter()
    stream_writer(options).commit(done, 0)
    assert served.bodies(TOPIC, least=2000) == bodies(range(2000))
    assert served.commits() == 1
    assert served.stages() == 0


def test_order_within_a_queue_is_that_of_the_partitions_and_of_their_rows(served: Served) -> None:
    options = options_for([served], queueSelector="roundrobin")
    # They end in another order, and Spark hands their messages over by partition.
    by_partition = {n: attempt(options, range(n * 700, n * 700 + 700), n) for n in (2, 0, 1)}
    stream_writer(options).commit([by_partition[n] for n in (2, 1, 0)], 0)
    rows = served.rows(TOPIC, least=2100)
    for queue in {row["queueId"] for row in rows}:
        numbers = [int(row["body"][4:]) for row in rows if row["queueId"] == queue]
        assert numbers == sorted(numbers)


def test_a_commit_that_comes_again_changes_nothing(served: Served) -> None:
    options = options_for([served])
    done = [attempt(options, range(500))]
    for _ in range(3):
        stream_writer(options).commit(done, 0)
    assert served.bodies(TOPIC, least=500) == bodies(range(500))
    assert served.commits() == 1


def test_a_batch_that_is_replayed_after_its_commit_changes_nothing(served: Served) -> None:
    """The driver died after the commit, before Spark noted it: the batch is run again."""
    options = options_for([served])
    stream_writer(options).commit([attempt(options, range(500))], 0)
    stream_writer(options).commit([attempt(options, range(500))], 0)
    stream_writer(options).commit([attempt(options, range(500, 600), batch=1)], 1)
    assert served.bodies(TOPIC, least=600) == bodies(range(600))
    assert served.commits() == 2


def test_a_batch_that_is_replayed_with_other_rows_is_refused_with_what_to_do(
    served: Served,
) -> None:
    options = options_for([served])
    stream_writer(options).commit([attempt(options, range(500))], 0)
    again = [attempt(options, range(400))]
    with pytest.raises(RefusedError, match=f"batch 0 of query {QUERY}.*different content") as seen:
        stream_writer(options).commit(again, 0)
    assert seen.value.status == "MESSAGE_ILLEGAL"
    for words in ("500 rows with", "commit has 400 rows with", "marker at", "new checkpoint"):
        assert words in str(seen.value)
    stream_writer(options).abort(again, 0)
    assert served.bodies(TOPIC, least=500) == bodies(range(500))


def test_a_stream_whose_store_process_stops_says_how_it_continues(tmp_path: Path) -> None:
    with served_here(tmp_path / "store", listen_socket=str(tmp_path / "run" / "s")) as found:
        options = options_for([found], retries=0)
        done = attempt(options, range(5))
        assert found.server.drain(30)
        with pytest.raises(RefusedError, match=r"stopping.*with the same checkpoint") as failure:
            stream_writer(options).commit([done], 0)
        assert failure.value.status == "SERVICE_NOT_AVAILABLE"


def test_a_commit_without_word_of_a_task_is_refused(served: Served) -> None:
    options = options_for([served])
    with pytest.raises(RmqStoreError, match="task 1 of 2"):
        stream_writer(options).commit([attempt(options, range(10)), None], 0)
    batch = options_for([served], streaming=False)
    with pytest.raises(RmqStoreError, match="task 0 of 2"):
        batch_writer(batch).commit([None, attempt(batch, range(10))])
    assert served.commits() == 0


def test_a_replay_in_other_partitions_is_known(served: Served) -> None:
    """Spark's adaptive execution cuts the same rows differently."""
    options = options_for([served])
    parts = [[range(500)], [range(100), range(100, 170), range(170, 500)]]
    for cut in parts:
        done = [attempt(options, rows, n) for n, rows in enumerate(cut)]
        stream_writer(options).commit(done, 0)
    assert served.bodies(TOPIC, least=500) == bodies(range(500))
    assert (served.commits(), served.stages()) == (1, 0)


def test_of_several_attempts_at_a_task_the_winner_counts(served: Served) -> None:
    options = options_for([served])
    losers = [attempt(options, range(500)) for _ in range(2)]
    winner = attempt(options, range(500))
    stream_writer(options).commit([winner], 0)
    late = attempt(options, range(500))  # speculation's other one ends after the commit
    assert served.bodies(TOPIC, least=500) == bodies(range(500))
    with served.client() as client:
        client.abort([stage.stage_id for done in (*losers, late) for stage in stages_of(done)])
    assert served.stages() == 0


def test_a_task_that_fails_leaves_nothing(served: Served) -> None:
    options = options_for([served])

    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches(range(600))
        raise ZeroDivisionError

    columns = find_columns(SCHEMA, options.messages)
    with pytest.raises(ZeroDivisionError):
        run_task(options, columns, failing(), Place(0, QUERY, 0), 0, QUERY)
    stream_writer(options).commit([attempt(options, range(600))], 0)
    assert served.bodies(TOPIC, least=600) == bodies(range(600))


def test_after_an_abort_a_late_attempt_and_a_replay_do_no_harm(served: Served) -> None:
    options = options_for([served])
    first = attempt(options, range(500))
    stream_writer(options).abort([first, None], 0)
    late = attempt(options, range(500))
    with pytest.raises(RefusedError):
        stream_writer(options).commit([first], 0)
    assert served.bodies(TOPIC) == Counter()
    stream_writer(options).commit([attempt(options, range(500))], 0)
    stream_writer(options).abort([late], 0)
    assert served.bodies(TOPIC, least=500) == bodies(range(500))


def test_an_abort_takes_back_no_commit(served: Served) -> None:
    """A commit timed out and succeeded all the same; Spark calls abort with its messages."""
    options = options_for([served])
    done = [attempt(options, range(500))]
    stream_writer(options).commit(done, 0)
    stream_writer(options).abort(done, 0)
    assert served.bodies(TOPIC, least=500) == bodies(range(500))


def test_two_queries_and_two_batches_are_told_apart(served: Served) -> None:
    options = options_for([served])
    one = attempt(options, range(100))
    other = TaskDone(Place(0, "other query", 0), attempt(options, range(100, 200)).stages, 100)
    stream_writer(options).commit([one], 0)
    stream_writer(options).commit([other], 0)
    assert served.bodies(TOPIC, least=200) == bodies(range(200))


def test_rows_without_a_query_are_refused(served: Served) -> None:
    options = options_for([served])
    done = TaskDone(Place(0, None, 0), attempt(options, range(10)).stages, 10)
    with pytest.raises(Exception, match="did not pass the id of this micro-batch's query"):
        stream_writer(options).commit([done], 0)


def test_an_empty_batch_leaves_no_trace(served: Served) -> None:
    options = options_for([served])
    done = attempt(options, range(0))
    assert done.stages == {}
    stream_writer(options).commit([done], 0)
    stream_writer(options).commit([], 1)
    assert served.commits() == 0


def test_a_row_that_cannot_be_stored_stages_nothing(served: Served) -> None:
    options = options_for([served])
    columns = find_columns(SCHEMA, options.messages)
    bad = pa.RecordBatch.from_pydict(
        {"body": ["a", None], "keys": [None, None]},
        pa.schema([("body", pa.string()), ("keys", pa.string())]),
    )
    rows = iter([*batches(range(300)), bad])
    with pytest.raises(RowError, match=r"Row 301 of this task \(topic 'orders'\) has null in col"):
        run_task(options, columns, rows, Place(0, QUERY, 0), 0, QUERY)
    assert served.bodies(TOPIC) == Counter()


def topics_at(served: Served) -> set[str]:
    with StoreClient(served.endpoint) as client:
        return {name for name in client.topics() if not is_system_topic(name)}


def test_a_write_that_is_refused_leaves_no_topic_behind(served: Served) -> None:
    """One task stages rows of new topics, another one meets a row without a topic."""
    options = options_for([served])
    options = replace(options, messages=replace(options.messages, topic=None))
    schema = fields("body string", "topic string")
    columns = find_columns(schema, options.messages)

    def task(number: int, *topics: str | None) -> TaskDone:
        batch = pa.RecordBatch.from_pydict(
            {"body": ["x"] * len(topics), "topic": pa.array(topics, pa.string())}
        )
        place = Place(number, QUERY, 0)
        return run_task(options, columns, iter([batch]), place, 0, QUERY)

    writer = RmqStoreStreamWriter(options, columns)
    good = task(0, "new-1", "new-2")
    with pytest.raises(RowError, match="has null in column topic"):
        task(1, "new-3", None)
    assert topics_at(served) == set()
    writer.abort([good, None], 0)
    assert topics_at(served) == set()
    # The batch is run again, whole: it creates what it has messages for.
    writer.commit([task(0, "new-1", "new-2"), task(1, "new-3")], 0)
    assert topics_at(served) == {"new-1", "new-2", "new-3"}


def test_a_commit_that_is_refused_leaves_no_topic_behind(serve: Serve) -> None:
    served = serve(maxTransactionBytes=1 << 20)
    options = options_for([served])
    done = [attempt(options, range(6000), n) for n in range(2)]
    with pytest.raises(RefusedError, match="maxTransactionBytes"):
        commit_done(options, WriterId.of_stream(QUERY, 0), done)
    assert topics_at(served) == set()


@pytest.mark.parametrize("queues", [1, 7])
def test_a_new_topic_gets_the_settings_of_its_store(serve: Serve, queues: int) -> None:
    served = serve(defaultTopicQueueNums=queues)
    options = options_for([served], queueSelector="roundrobin")
    stream_writer(options).commit([attempt(options, range(100))], 0)
    with StoreClient(served.endpoint) as client:
        assert client.topics()[TOPIC].write_queue_nums == queues
    rows = served.rows(TOPIC, least=100)
    assert {row["queueId"] for row in rows} == set(range(queues))


def test_a_store_that_creates_no_topics_refuses_the_first_row(serve: Serve) -> None:
    served = serve(autoCreateTopicEnable="false")
    with pytest.raises(TopicNotFoundError, match=r"does not exist .*autoCreateTopicEnable"):
        attempt(options_for([served]), range(10))
    assert topics_at(served) == set()


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_task_that_waits_for_its_rows_longer_than_a_stream_may_be_idle(
    serve: Serve, guarantee: str
) -> None:
    served = serve(streamIdleTimeout=2000)
    options = options_for([served], deliveryGuarantee=guarantee)
    columns = find_columns(SCHEMA, options.messages)

    def slow() -> Iterator[pa.RecordBatch]:
        for first in (0, 300, 600):
            yield from batches(range(first, first + 300))
            time.sleep(2.5)  # this is what the test is about

    done = run_task(options, columns, slow(), Place(0, QUERY, 0), 0, QUERY, idle_seconds=0.2)
    assert len(stages_of(done)) == (3 if guarantee == "exactly-once" else 0)
    stream_writer(options).commit([done], 0)
    assert served.bodies(TOPIC, least=900) == bodies(range(900))


# ---- the store process dies ---------------------------------------------------------------------


@pytest.mark.fault
def test_a_store_that_is_killed_between_staging_and_commit(served: Served) -> None:
    options = options_for([served])
    done = [attempt(options, range(500))]
    served.process.kill()
    with pytest.raises(
        ServiceError, match=r"^Nothing listens on .* Start the query again with the same check"
    ):
        stream_writer(options).commit(done, 0)
    stream_writer(options).abort(done, 0)  # only says so in the log
    served.restart()
    with pytest.raises(RefusedError):
        stream_writer(options).commit(done, 0)
    assert served.bodies(TOPIC) == Counter()
    stream_writer(options).commit([attempt(options, range(500))], 0)
    assert served.bodies(TOPIC, least=500) == bodies(range(500))


@pytest.mark.fault
def test_a_store_that_is_killed_right_after_a_commit(served: Served) -> None:
    options = options_for([served])
    stream_writer(options).commit([attempt(options, range(500))], 0)
    served.process.kill()
    served.restart()
    assert served.bodies(TOPIC, least=500) == bodies(range(500))
    stream_writer(options).commit([attempt(options, range(500))], 0)
    assert served.bodies(TOPIC, least=500) == bodies(range(500))
    assert served.commits() == 1


# ---- several stores -----------------------------------------------------------------------------


def test_two_stores_share_the_rows_and_a_replay_routes_the_same(serve: Serve) -> None:
    stores = [serve("a", brokerName="broker-a"), serve("b", brokerName="broker-b")]
    options = options_for(stores)
    done = [attempt(options, range(n * 500, n * 500 + 500), n, batch=3) for n in (0, 1)]
    again = [attempt(options, range(n * 500, n * 500 + 500), n, batch=3) for n in (0, 1)]
    for first, second in zip(done, again, strict=True):
        sizes = [
            {store: [(i.rows, i.bytes) for i in infos] for store, infos in task.stages.items()}
            for task in (first, second)
        ]
        assert sizes[0] == sizes[1]
    # One store has committed when the other one fails.
    stores[1].process.kill()
    with pytest.raises(ServiceError, match="has already committed its part of this write"):
        stream_writer(options).commit(done, 3)
    stores[1].restart()
    stream_writer(options).commit(
        [attempt(options, range(n * 500, n * 500 + 500), n, batch=3) for n in (0, 1)], 3
    )
    found = [store.bodies(TOPIC) for store in stores]
    assert found[0] + found[1] == bodies(range(1000))
    assert all(len(part) > 100 for part in found)


@pytest.mark.parametrize("selector", ["hash", "roundrobin"])
def test_two_stores_and_a_replay_in_other_partitions_and_another_order(
    serve: Serve, selector: str
) -> None:
    """Each store is given the same rows, also if only one has committed; then the rest comes."""
    stores = [serve("a", brokerName="broker-a"), serve("b", brokerName="broker-b")]
    options = options_for(stores, queueSelector=selector)
    first = [attempt(options, range(n * 500, n * 500 + 500), n, batch=3) for n in (0, 1)]
    stores[1].process.kill()
    with pytest.raises(ServiceError, match="has already committed its part of this write"):
        stream_writer(options).commit(first, 3)
    stores[1].restart()
    for cuts in ((0, 300, 650, 1000), (0, 1000)):
        parts = [list(range(1000))[::-1][a:b] for a, b in pairwise(cuts)]
        again = [attempt(options, part, n, batch=3) for n, part in enumerate(parts)]
        stream_writer(options).commit(again, 3)
    found = [store.bodies(TOPIC) for store in stores]
    assert found[0] + found[1] == bodies(range(1000))
    assert [store.commits() for store in stores] == [1, 1]
    assert all(len(part) > 400 for part in found)


def test_one_store_given_twice_is_refused(served: Served) -> None:
    twice = f"{served.endpoint},{served.endpoint.replace('127.0.0.1', 'localhost')}"
    options = parse_sink_options({"endpoint": twice, "topic": TOPIC}, streaming=True)
    with pytest.raises(OptionError, match="belong to the same store"):
        attempt(options, range(10))


# ---- at least once ------------------------------------------------------------------------------


def test_a_write_in_parts_uses_its_number_at_all_stores(serve: Serve) -> None:
    stores = [serve("a", brokerName="broker-a"), serve("b", brokerName="broker-b")]
    options = options_for(stores, False, txnAppId="nightly", txnVersion=1, atomic="false")
    done = attempt(options, range(1))  # a row, which goes to one of them
    assert len(done.stages) == 1
    for _ in range(2):
        use_number(options.target.connection, WriterId.of_batch("nightly", 1), done)
        assert [store.commits() for store in stores] == [1, 1]
    whole = options_for(stores, False, txnAppId="nightly", txnVersion=1)
    with pytest.raises(RefusedError, match="another value of atomic"):
        batch_writer(whole).commit([attempt(whole, range(100))])
    assert [store.commits() for store in stores] == [1, 1]


def test_at_least_once_stores_rows_before_the_commit(served: Served) -> None:
    options = options_for([served], deliveryGuarantee="at-least-once")
    done = attempt(options, range(1000))
    assert served.bodies(TOPIC, least=1000) == bodies(range(1000))
    stream_writer(options).commit([done], 0)
    stream_writer(options).commit([done], 0)
    attempt(options, range(1000))  # a second attempt stores them again
    assert served.bodies(TOPIC, least=2000) == bodies(range(1000), range(1000))
    assert served.commits() == 0


# ---- batch writes -------------------------------------------------------------------------------


def batch_writer(options: SinkOptions) -> RmqStoreWriter:
    made = RmqStoreWriter(options, find_columns(SCHEMA, options.messages))
    sent: RmqStoreWriter = pickle.loads(pickle.dumps(made))
    return sent


def test_a_batch_write_is_told_from_any_other(served: Served) -> None:
    options = options_for([served], streaming=False)
    for _ in range(2):
        writer = batch_writer(options)
        done = [attempt(options, range(200))]
        writer.commit(done)
        writer.commit(done)
    assert served.bodies(TOPIC, least=400) == bodies(range(200), range(200))


def test_a_write_with_txn_version_that_is_run_again_changes_nothing(served: Served) -> None:
    for version in (4, 4, 5, 5, 4):
        options = options_for([served], False, txnAppId="nightly", txnVersion=version)
        rows = range(version * 100, version * 100 + 100)
        batch_writer(options).commit([attempt(options, rows)])
        served.rows(TOPIC)  # what the log holds is in queues, so that 4 can be looked up
    other = options_for([served], False, txnAppId="weekly", txnVersion=1)
    batch_writer(other).commit([attempt(other, range(100))])
    assert served.bodies(TOPIC, least=300) == bodies(range(400, 600), range(100))
    assert served.commits() == 3
    assert served.stages() == 0


def test_tasks_that_commit_alone_must_have_the_same_rows_in_the_same_partitions(
    served: Served,
) -> None:
    options = options_for([served], False, txnAppId="nightly", txnVersion=1, atomic="false")
    writer = batch_writer(options)

    def commit(rows: Sequence[int], partition: int) -> None:
        commit_done(options, writer._writer_id(partition), [attempt(options, rows, partition)])

    for _ in range(2):  # the second time as another run of the write does
        for partition in (0, 1):
            commit(range(partition * 100 + 100, partition * 100 + 200), partition)
    for rows in (range(101, 201), range(100, 150), range(200, 300)):
        with pytest.raises(RefusedError, match="atomic=false: other rows in a partition"):
            commit(rows, 0)
    assert served.bodies(TOPIC, least=200) == bodies(range(100, 300))


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (4, r"txnVersion 4 of txnAppId nightly has been .*: 100 rows with 700 bytes.* 99 rows"),
        (3, "txnVersion 3 of txnAppId nightly cannot be committed: 4 has been"),
    ],
)  # fmt: skip
def test_a_write_whose_txn_version_was_used_for_another_is_refused(
    served: Served, version: int, words: str
) -> None:
    first = options_for([served], False, txnAppId="nightly", txnVersion=4)
    batch_writer(first).commit([attempt(first, range(100, 200))])
    other = options_for([served], False, txnAppId="nightly", txnVersion=version)
    done = [attempt(other, range(200, 299))]
    with pytest.raises(RefusedError, match=words) as seen:
        batch_writer(other).commit(done)
    assert seen.value.status == "MESSAGE_ILLEGAL"
    batch_writer(other).abort(done)  # as Spark does then
    assert served.bodies(TOPIC, least=100) == bodies(range(100, 200))
    assert (served.commits(), served.stages()) == (1, 0)
    fresh = options_for([served], False, txnAppId="nightly", txnVersion=5)
    batch_writer(fresh).commit([attempt(fresh, range(200, 299))])
    assert served.bodies(TOPIC, least=199) == bodies(range(100, 299))


def test_a_task_that_commits_alone_may_be_run_again_but_not_with_other_rows(
    served: Served,
) -> None:
    options = options_for([served], False, atomic="false", txnAppId="load", txnVersion=1)
    writer = batch_writer(options)
    for done in (attempt(options, range(100)), attempt(options, range(100))):
        commit_done(options, writer._writer_id(0), [done])
    with pytest.raises(
        RefusedError, match="txnAppId load/0 has been committed already with different"
    ):
        commit_done(options, writer._writer_id(0), [attempt(options, range(150))])
    assert served.bodies(TOPIC, least=100) == bodies(range(100))


def test_a_commit_of_too_many_bytes_is_refused(served: Served) -> None:
    options = options_for([served], False, maxTransactionBytes="100k")
    with pytest.raises(OptionError, match=r"a task .* more than maxTransactionBytes \(102,400"):
        attempt(options, range(2000))
    done = [attempt(options, range(n * 400, n * 400 + 400), n) for n in (0, 1)]
    with pytest.raises(OptionError, match="atomic=false"):
        batch_writer(options).commit(done)
    batch_writer(options).abort(done)
    alone = options_for([served], False, maxTransactionBytes="100k", atomic="false")
    with pytest.raises(OptionError, match="more partitions") as caught:
        attempt(alone, range(2000))
    assert "set atomic=false" not in str(caught.value)
    assert served.bodies(TOPIC) == Counter()
    served.wait_for_no_stage()
