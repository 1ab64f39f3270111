"""A store goes from our process to a RocketMQ broker and back: each takes it as its own."""

from __future__ import annotations

import base64
import re
import shutil
import signal
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users have it

from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.reader import Store
from tests.cli.processes import run
from tests.datasource.sink.serving import Served
from tests.rocketmq.processes import SIZES, Broker, Client, own_properties
from tests.rocketmq.reading import bodies_of, ends, verify
from tests.support.processes.halving import ends as settle
from tests.support.processes.halving import half_config, put_halves, waiting_in
from tests.support.processes.serving import StoreProcess, eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Brokers = Callable[..., Broker]
TOPIC, QUEUES, ROWS = "orders", 4, 6000


def write(spark: SparkSession, served: Served, version: int, first: int, count: int) -> None:
    """Write rows by the sink, a version of them once; `given` tells what each is."""
    name = F.col("id").cast("string")
    rows = spark.range(first, first + count, numPartitions=3).select(
        F.concat(F.lit("row-"), name, F.lit("-"), F.repeat(F.lit("x"), 150)).alias("body"),
        F.array(F.concat(F.lit("key-"), name), F.concat(F.lit("ten-"), F.col("id") % 10)).alias(
            "keys"
        ),
        F.when(F.col("id") % 3 > 0, F.concat(F.lit("tag"), F.col("id") % 3)).alias("tags"),
        F.create_map(
            *(F.lit("id"), name, F.lit("näme"), F.lit("wört")),
            *(F.lit("DELAY"), F.lit("3")),  # of another delivery: none is asked for here
        ).alias("properties"),
        (F.col("id") % QUEUES).cast("int").alias("queueId"),
        F.col("id").cast("int").alias("flag"),
    )
    sink = rows.write.format("rmqstore").mode("append").option("queueSelector", "column")
    sink = sink.options(endpoint=served.endpoint, topic=TOPIC)
    sink.options(txnAppId="handover", txnVersion=version).save()


def given(row: int) -> dict[str, Any]:
    """What a consumer must get for a row."""
    body = f"row-{row}-{'x' * 150}".encode()
    tags = {"TAGS": f"tag{row % 3}"} if row % 3 else {}
    return {
        "body": body,
        "bodyCRC": zlib.crc32(body) & 0x7FFFFFFF,
        "flag": row,
        "tags": tags.get("TAGS"),
        "keys": f"key-{row} ten-{row % 10}",
        "properties": {"id": str(row), "näme": "wört", "KEYS": f"key-{row} ten-{row % 10}"} | tags,
    }


def queues(pulled: Iterable[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Pulled messages by queue, as `given` has them; their offsets leave nothing out."""
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for message in pulled:
        queue = found[message["queueId"]]
        assert message["queueOffset"] == len(queue)
        properties = own_properties(message)
        assert len(properties.pop("UNIQ_KEY")) in (32, 56)  # of clients with IPv4, or IPv6 alone
        queue.append(
            {
                "body": base64.b64decode(message["body"]),
                "properties": properties,
                **{name: message.get(name) for name in ("bodyCRC", "flag", "tags", "keys")},
            }
        )
    return dict(found)


def by_queue(rows: Iterable[int]) -> dict[int, list[dict[str, Any]]]:
    """What a consumer must get of these rows, by queue."""
    found = defaultdict(list)
    for row in rows:
        found[row % QUEUES].append(given(row))
    return dict(found)


def test_a_store_of_the_sink_is_a_brokers_and_comes_back(
    spark: SparkSession, served: Served, client: Client, broker: Brokers
) -> None:
    with served.client() as ours:
        ours.create_topic(TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
    write(spark, served, 1, 0, ROWS)
    served.process.stop()
    assert len(list((served.path / "commitlog").iterdir())) > 6

    with broker(served.path) as running:
        assert queues(client.pull(TOPIC)) == by_queue(range(ROWS))
        assert client.offsets(TOPIC) == dict.fromkeys(range(QUEUES), (0, ROWS // QUEUES))
        tagged = client.pull(TOPIC, "tag2")  # the broker looks at its queues alone for that
        assert len(tagged) == ROWS // 3
        assert {message["tags"] for message in tagged} == {"tag2"}
        for row in (0, ROWS // 2, ROWS - 1):
            (found,) = client.ask("key", TOPIC, f"key-{row}")
            assert bodies_of([found]) == [given(row)["body"]]
            for msg_id in (found["msgId"], found["properties"]["UNIQ_KEY"]):
                assert bodies_of(client.ask("id", TOPIC, msg_id)) == [given(row)["body"]]
        sent = [s for q in range(QUEUES) for s in client.ask("send", TOPIC, q, 500, f"q{q}-", 0)]
        assert {message["status"] for message in sent} == {"SEND_OK"}
        running.stop()

    verify(served.path)
    rows = served.rows(TOPIC, ("queueId", "queueOffset", "body", "msgId", "uniqKey", "keys"))
    held = {(row["queueId"], row["queueOffset"]): row for row in rows}
    assert len(held) == ROWS + 4 * 500
    for message in sent:
        found = held[message["queueId"], message["queueOffset"]]
        assert found["body"].decode() == message["body"]
        assert (found["msgId"], found["uniqKey"]) == (message["msgId"], message["uniqKey"])
        assert found["keys"] == [message["body"]]

    served.restart()
    write(spark, served, 1, 0, ROWS)  # is still known to be there
    write(spark, served, 2, ROWS, 1000)
    served.process.stop()
    verify(served.path)
    with broker(served.path) as running:
        pulled = queues(client.pull(TOPIC))
        (found,) = client.ask("key", TOPIC, "q3-499")
        assert bodies_of([found]) == [b"q3-499"]
        running.stop()
    first, then = by_queue(range(ROWS)), by_queue(range(ROWS, ROWS + 1000))
    for q, messages in pulled.items():
        cut = len(first[q])
        assert messages[:cut] == first[q]
        assert [m["body"].decode() for m in messages[cut : cut + 500]] == [
            f"q{q}-{n}" for n in range(500)
        ]
        assert messages[cut + 500 :] == then[q]


def test_topics_made_on_either_side_are_known_on_the_other(
    served: Served, client: Client, broker: Brokers
) -> None:
    with served.client() as ours:
        ours.create_topic("wide", read_queue_nums=5, write_queue_nums=2, perm=6)
        ours.create_topic("closed", read_queue_nums=3, write_queue_nums=3, perm=4)
    served.process.stop()
    with broker(served.path) as running:
        assert client.ask("route", "wide") == [
            {"brokerName": "broker-a", "readQueueNums": 5, "writeQueueNums": 2, "perm": 6}
        ]
        assert client.ask("route", "closed") == [
            {"brokerName": "broker-a", "readQueueNums": 3, "writeQueueNums": 3, "perm": 4}
        ]
        client.ask("topic", "theirs", 7, 6, 2)  # the broker writes topics.json again
        running.stop()
    served.restart()
    with served.client() as ours:
        found = {
            name: (t.read_queue_nums, t.write_queue_nums, t.perm)
            for name, t in ours.topics().items()
        }
    assert found["wide"] == (5, 2, 6)
    assert found["closed"] == (3, 3, 4)
    assert found["theirs"] == (7, 6, 2)


def test_clients_move_from_a_broker_to_a_store_process_and_back(
    client: Client, broker: Brokers, port: int, tmp_path: Path
) -> None:
    """Same brokerName, address and name server: a group consumes what it has not had yet."""
    path = tmp_path / "store"
    got: list[bytes] = []

    def use(number: int) -> None:
        """Send some messages, and consume as many; the topic keeps its queues."""
        eventually(lambda: _is_there(client), 90)
        client.ask("send", TOPIC, number % QUEUES, 10, f"m{number}-", 0)
        got.extend(bodies_of(client.ask("consume", TOPIC, "movers", 10)[1:]))
        assert {q["writeQueueNums"] for q in client.ask("route", TOPIC)} == {QUEUES}

    with broker(path) as running:
        client.ask("topic", TOPIC, QUEUES, QUEUES, 6)
        use(1)
        settings = running.settings
        running.stop()
    more = (f"--config={settings}", "--clients=all", f"--port={port}")
    with StoreProcess(path, tmp_path, *more) as ours:
        use(2)
        ours.signal(signal.SIGTERM)
        assert ours.wait() == 0
    with broker(path) as running:
        use(3)
        running.stop()
    expected = [f"m{number}-{n}".encode() for number in (1, 2, 3) for n in range(10)]
    assert sorted(got) == sorted(expected)
    assert re.search(r"movers +orders +2 +10 ", run("groups", path).stdout)


def _is_there(client: Client) -> bool:
    """Whether the topic has a route, and its broker answers."""
    try:
        return bool(client.offsets(TOPIC))
    except AssertionError:
        return False


def test_a_store_that_a_broker_writes_is_read_in_place_and_copied(
    client: Client, broker: Brokers, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    with broker(path) as running:
        client.ask("topic", TOPIC, QUEUES, QUEUES, 6)
        for q in range(QUEUES):
            client.ask("send", TOPIC, q, 300 + q, "m", 0)
        told = client.offsets(TOPIC)
        assert told == {q: (0, 300 + q) for q in range(QUEUES)}
        assert ends(path, TOPIC) == told
        copied = shutil.copytree(path, tmp_path / "copy", ignore=shutil.ignore_patterns("lock"))
        assert ends(copied, TOPIC) == told
        with Store.open(copied) as store:
            read = [row for batch in store.read(TOPIC, 3) for row in batch.to_pylist()]
        assert [row["body"].decode() for row in read] == [f"m{n}" for n in range(303)]
        running.stop()
    verify(path)
    assert ends(path, TOPIC) == told


def test_a_delayed_message_waits_with_us_and_is_delivered_by_the_broker(
    client: Client, broker: Brokers, served: Served
) -> None:
    served.process.stop()
    levels = "1s 8s"
    with broker(served.path, messageDelayLevel=levels) as running:
        client.ask("topic", TOPIC, 1, 1, 6)
        client.ask("send", TOPIC, 0, 3, "late-", 2)
        running.kill()
    done = run("recover", served.path, f"--set=messageDelayLevel={levels}")
    assert done.returncode == 0, done.stderr
    assert ends(served.path, "SCHEDULE_TOPIC_XXXX") == {1: (0, 3)}
    assert not any(
        end for _, end in ends(served.path, TOPIC).values()
    )  # not due when the broker was killed
    with broker(served.path, messageDelayLevel=levels) as running:
        eventually(lambda: client.offsets(TOPIC) == {0: (0, 3)})
        assert bodies_of(client.pull(TOPIC)) == [f"late-{n}".encode() for n in range(3)]
        running.stop()


def test_transactions_that_wait_with_us_are_settled_by_the_broker(
    client: Client, broker: Brokers, tmp_path: Path
) -> None:
    """A third is committed before, a third rolled back; the broker asks for the others."""
    path = tmp_path / "store"
    settings = half_config(**SIZES)
    born = pa.array([time.time_ns() // 1_000_000] * 12, pa.int64())  # not past fileReservedTime
    with StoreWriter.open(path, settings) as store:
        store.create_topic(TOPIC, read_queue_nums=1, write_queue_nums=1)
        bodies = [b"%d" % n for n in range(12)]
        made = put_halves(store, bodies, topic=TOPIC, bornTimestamp=born)
        assert settle(store, made[0::3], is_commit=True) == ["COMMITTED"] * 4
        assert settle(store, made[1::3], is_commit=False) == ["ROLLED_BACK"] * 4
    # 5.3 notes ends together, and asks again about those that it has not noted: between two checks.
    timing = {
        "transactionTimeOut": 1000, "transactionCheckInterval": 3000,
        "transactionOpBatchInterval": 100,
    }  # fmt: skip
    with broker(path, **timing) as running:
        asked = client.ask("settle", "pg", 4)
        wanted = [b"%d" % n for n in range(2, 12, 3)]
        assert sorted(set(bodies_of(asked))) == sorted(wanted)
        eventually(lambda: client.offsets(TOPIC) == {0: (0, 8)})
        assert bodies_of(client.pull(TOPIC))[:4] == [b"%d" % n for n in range(0, 12, 3)]
        assert sorted(bodies_of(client.pull(TOPIC))[4:]) == sorted(wanted)
        eventually(lambda: waiting_in(path) == [], 90)
        running.stop()
    verify(path)
    assert waiting_in(path) == []
    with StoreWriter.open(path, settings) as store:
        assert settle(store, made, is_commit=True) == ["ENDED_BEFORE"] * 12
