"""RocketMQ's C++ and Node clients, with our name server and broker in place of RocketMQ's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chispa import assert_df_equality
from pyspark.sql import functions as F  # noqa: N812 - Spark's habit

from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import ask, broker, name_server, route
from tests.broker.clients.real_client import RealClient, cpp_command, node_command
from tests.broker.protection.accounts import write_accounts
from tests.datasource.sink.serving import Served
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PATIENCE = 120.0
_BATCHES, _ROWS = 2, 300


def _cpp() -> list[str]:
    command = cpp_command()
    if command is None:
        pytest.skip("the C++ client is not installed")
    return command


def _node() -> list[str]:
    command = node_command()
    if command is None:
        pytest.skip("the Node client is not installed: python -m tools.node")
    return command


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str]]:
    """A store process that is a broker, and the name server that it registers with."""
    folder = tmp_path_factory.mktemp("shared")
    with name_server(folder) as address:
        served = Served(
            folder / "store", clients="all", vipListenPort=0, namesrvAddr=address,
            messageDelayLevel="1s 1s 1s",
        )  # fmt: skip
        yield served, address
        served.process.stop()


@pytest.mark.parametrize(
    ("of", "group"), [(_cpp, "cpp-consumers"), (_node, "node-consumers")], ids=["C++", "Node"]
)
def test_it_sends_and_consumes(
    spark: SparkSession,
    shared: tuple[Served, str],
    tmp_path: Path,
    of: Callable[[], list[str]],
    group: str,
) -> None:
    """It gets each row of a Spark stream once, and Spark reads what it has sent."""
    command, (served, address) = of(), shared
    topic, retries = f"for-{group}", f"%RETRY%{group}"
    first = [f"body-{number}" for number in range(10)]
    rows = _write_files(tmp_path / "rows")
    with served.client() as asked:
        asked.create_topic(topic, read_queue_nums=8)
        asked.create_topic(retries, read_queue_nums=1)  # clients look for new routes every 30 s
        eventually(lambda: route(address, topic) and route(address, retries))
        client = RealClient(tmp_path, *command, address, topic, len(first))
        try:
            eventually(lambda: client.words("ready"), _PATIENCE)
            assert [words[1] for words in client.words("sent")] == first
            eventually(lambda: client.got() >= set(first), _PATIENCE)
            # One that it refuses once comes again, and is shown with its own topic's key and tag.
            client.send("refused")
            # A send that was not answered in time is sent again, so there can be more of them.
            again = ["refused", "1", "key-refused", "TagA"]
            eventually(lambda: again in [words[:4] for words in client.words("got")], _PATIENCE)
            assert ["refused", "0", *again[2:]] in [words[:4] for words in client.words("got")]
            _stream(spark, tmp_path, served.endpoint, topic)
            eventually(lambda: client.got() >= set(rows), _PATIENCE)
            assert client.end() == 0
        finally:
            client.kill()
        asked.flush()
    assert Counter(body for body, *_ in client.words("got") if body in rows) == Counter(rows)
    reader = spark.read.format("rmqstore").option("subscribe", topic)
    found = reader.load(str(served.path)).select(F.expr("string(body) AS body"), "keys", "tags")
    written = spark.read.parquet(str(tmp_path / "rows")).select("body", F.array("keys"), "tags")
    sent = [(body, [f"key-{body}"], "TagA") for body in (*first, "refused")]
    for read, expected in (
        (found.filter("body LIKE 'row-%'"), written.toDF(*found.columns)),
        (
            found.filter("body NOT LIKE 'row-%'").distinct(),
            spark.createDataFrame(sent, found.schema),
        ),
    ):
        assert_df_equality(read, expected, ignore_row_order=True, ignore_nullable=True)


def test_the_cpp_client_begins_again_when_it_is_told_to(
    shared: tuple[Served, str], tmp_path: Path
) -> None:
    command, (served, address) = _cpp(), shared
    topic, group = "reset", "cpp-consumers"
    sent = {f"body-{number}" for number in range(5)}
    with served.client() as asked:
        asked.create_topic(topic, read_queue_nums=1)
        found = eventually(lambda: route(address, topic))
        (broker_data,) = found["brokerDatas"]
        reset = Command(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            {"topic": topic, "group": group, "timestamp": "0", "isForce": "true"},
        )
        client = RealClient(tmp_path, *command, address, topic, len(sent))
        try:
            eventually(lambda: client.got() >= sent, _PATIENCE)
            # It may be reset as soon as it has reported its progress.
            eventually(lambda: ask(broker_data["brokerAddrs"]["0"], reset)[0].code == 0, _PATIENCE)
            eventually(lambda: all(_times(client, body) >= 2 for body in sent), _PATIENCE)
            assert client.end() == 0
        finally:
            client.kill()


def _times(client: RealClient, body: str) -> int:
    return [words[0] for words in client.words("got")].count(body)


def _write_files(folder: Path) -> list[str]:
    """Rows in files, of which a micro-batch takes one; their bodies."""
    folder.mkdir()
    rows = [f"row-{number}" for number in range(_ROWS)]
    for number in range(_BATCHES):
        part = rows[number::_BATCHES]
        columns = {
            "body": part,
            "keys": [f"key-{row}" for row in part],
            "tags": ["TagA"] * len(part),
        }
        pq.write_table(pa.table(columns), folder / f"{number}.parquet")
    return rows


def _stream(spark: SparkSession, folder: Path, endpoint: str, topic: str) -> None:
    """Let a stream of Spark write the rows, exactly once."""
    reader = spark.readStream.schema("body string, keys string, tags string")
    rows = reader.option("maxFilesPerTrigger", 1).parquet(str(folder / "rows"))
    writer = rows.writeStream.format("rmqstore").options(endpoint=endpoint, topic=topic)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(int(_PATIENCE))


_ACCOUNTS = """\
accounts:
- accessKey: application
  secretKey: "correct horse"
  defaultGroupPerm: SUB
  topicPerms: [orders=PUB|SUB]
"""


@pytest.mark.threat("Accounts")
@pytest.mark.parametrize("of", [_cpp, _node], ids=["C++", "Node"])
@pytest.mark.parametrize("secret", ["correct horse", "wrong horse"])
def test_it_signs(tmp_path: Path, of: Callable[[], list[str]], secret: str) -> None:
    command = of()
    settings = {
        "acl_enable": True,
        "acl_path": write_accounts(tmp_path / "plain_acl.yml", _ACCOUNTS),
    }
    with (
        name_server(tmp_path) as address,
        broker(tmp_path / "store", namesrv_addr=address, **settings) as served,
    ):
        served.store.create_topic("orders", read_queue_nums=2)
        eventually(lambda: route(address, "orders"))
        client = RealClient(tmp_path, *command, address, "orders", 3, "application", secret)
        try:
            if secret == "correct horse":
                bodies = {"body-0", "body-1", "body-2"}
                eventually(lambda: client.got() >= bodies, _PATIENCE)
                assert client.end() == 0
            else:
                assert client.end() != 0
                assert not client.words("sent")
                served.store.flush()
                assert served.store.stats()["commitLogMaxOffset"] == 0
        finally:
            client.kill()
