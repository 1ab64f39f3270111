"""Batch writes through a JVM."""

from __future__ import annotations

import datetime as dt
import io
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users have it

from tests.datasource.sink.serving import Served
from tests.support.accounts import SECRET, account_file, guarded
from tests.support.certificates import make_certificates
from tests.support.processes.driverlog import driver_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Serve = Callable[..., Served]
TOPIC = "orders"


def write(frame: DataFrame, *stores: Served, mode: str = "append", **options: Any) -> None:
    writer = frame.write.format("rmqstore").mode(mode)
    writer = writer.option("endpoint", ",".join(store.endpoint for store in stores))
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.save()


def numbers(spark: SparkSession, count: int, partitions: int = 3) -> DataFrame:
    """So many rows to write."""
    return spark.range(count, numPartitions=partitions).select(
        F.concat(F.lit("row-"), F.col("id")).alias("body"),
        F.when(F.col("id") % 3 > 0, F.concat(F.lit("key-"), F.col("id"))).alias("keys"),
    )


def bodies(count: int) -> Counter[bytes]:
    return Counter(f"row-{n}".encode() for n in range(count))


def stored(spark: SparkSession, store: Served, least: int, **options: Any) -> DataFrame:
    """What reading gives, once everything is in queues."""
    store.rows(TOPIC, least=least)
    return spark.read.format("rmqstore").options(**options).load(str(store.path))


# ---- what arrives -------------------------------------------------------------------------------


def test_each_row_arrives_once(spark: SparkSession, served: Served) -> None:
    given = numbers(spark, 25_000)
    write(given, served, topic=TOPIC)
    read = stored(spark, served, 25_000).select("body", F.element_at("keys", 1).alias("keys"))
    wanted = given.withColumn("body", F.col("body").cast("binary"))
    assert_df_equality(read.orderBy("body"), wanted.orderBy("body"), ignore_nullable=True)
    assert served.commits() == 1
    assert served.stages() == 0


@pytest.mark.spark_versions
def test_every_column_is_read_as_it_was_written(spark: SparkSession, served: Served) -> None:
    moment = dt.datetime(2024, 3, 31, 1, 30, 0, 123000, dt.timezone.utc)
    schema = (
        "body binary, topic string, tags string, keys array<string>, properties map<string,string>,"
        "queueId int, flag int, bornTimestamp timestamp"
    )
    given = spark.createDataFrame(
        [
            (b"\x00\xff", TOPIC, "t", ["a", "b"], {"p": "é", "q": "\x01"}, 3, -1, moment),
            (b"", TOPIC, None, None, None, 0, None, moment),
            (b"3", TOPIC, "", [], {}, 1, 7, moment),
        ],
        schema,
    )
    write(given, served, queueSelector="column")
    read = stored(spark, served, 3, subscribe=TOPIC)
    own = F.map_filter("properties", lambda k, _: ~k.isin("UNIQ_KEY", "TAGS", "KEYS"))
    got = read.withColumn("properties", own).select(*given.columns)
    none = F.create_map().cast("map<string,string>")
    expected = given.select(
        "body", "topic",
        F.when(F.col("tags") != "", F.col("tags")).alias("tags"),
        F.when(F.size("keys") > 0, F.col("keys")).alias("keys"),
        F.coalesce("properties", none).alias("properties"),
        "queueId", F.coalesce("flag", F.lit(0)).alias("flag"), "bornTimestamp",
    )  # fmt: skip
    assert_df_equality(got.orderBy("queueId"), expected.orderBy("queueId"), ignore_nullable=True)
    ids = [row.uniqKey for row in read.collect()]
    assert len(set(ids)) == 3


def test_rows_with_a_delay_level_arrive_later_and_once(spark: SparkSession, served: Served) -> None:
    given = numbers(spark, 3_000).withColumn(
        "delayTimeLevel", F.when(F.col("keys").isNotNull(), F.lit(1))
    )
    write(given, served, topic=TOPIC)
    read = stored(spark, served, 3_000).select(
        "body", F.element_at("keys", 1).alias("keys"),
        F.element_at("properties", "DELAY").cast("int").alias("delayTimeLevel"),
    )  # fmt: skip
    wanted = given.withColumn("body", F.col("body").cast("binary"))
    assert_df_equality(read.orderBy("body"), wanted.orderBy("body"), ignore_nullable=True)
    late = spark.read.format("rmqstore").option("subscribe", "SCHEDULE_TOPIC_XXXX")
    assert late.load(str(served.path)).count() == 2_000
    with pytest.raises(PySparkException, match="has -1 in column delayTimeLevel"):
        write(given.withColumn("delayTimeLevel", F.lit(-1)), served, topic=TOPIC)


@pytest.mark.parametrize(
    "zone",
    ["UTC", "America/St_Johns", pytest.param("Asia/Kolkata", marks=pytest.mark.spark_versions)],
)
def test_a_time_is_the_same_moment_in_every_session(
    spark: SparkSession, served: Served, zone: str
) -> None:
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        given = spark.sql("SELECT timestamp_millis(1711850400123) bornTimestamp, 'x' body")
        write(given, served, topic=TOPIC)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    (row,) = stored(spark, served, 1).select(F.unix_millis("bornTimestamp").alias("at")).collect()
    assert row.at == 1711850400123


@pytest.mark.spark_versions
def test_what_was_read_is_written_again_as_it_was(
    spark: SparkSession, serve: Serve, golden: Callable[[str], Path]
) -> None:
    """All that `preserve` keeps, of messages that RocketMQ wrote, and back once more."""
    source = spark.read.format("rmqstore").load(str(golden("basic") / "store"))
    without_id = source.where("uniqKey IS NULL").count()
    assert without_id > 0
    for name in ("first", "second"):
        store = serve(name, defaultTopicQueueNums=16)
        write(source, store, preserve="true", queueSelector="column")
        topics = [row.topic for row in source.select("topic").distinct().collect()]
        for topic in topics:
            store.rows(topic)
        copy = spark.read.format("rmqstore").load(str(store.path))
        # A message without an id is given one, and it has that from then on.
        assert copy.where("uniqKey IS NULL").count() == 0
        assert copy.count() == source.count()
        assert_df_equality(
            kept(copy, source.where("uniqKey IS NOT NULL")),
            kept(source.where("uniqKey IS NOT NULL")),
            ignore_nullable=True,
        )
        source = copy


def kept(frame: DataFrame, only: DataFrame | None = None) -> DataFrame:
    """What writing preserves, in a fixed order; of the messages that another frame has too."""
    if only is not None:
        frame = frame.join(only.select("uniqKey"), "uniqKey", "left_semi")
    # KEYS is rebuilt from the keys; WAIT belongs to a delivery.
    properties = F.map_filter("properties", lambda name, _: ~name.isin("WAIT", "KEYS"))
    return frame.select(
        "topic", "queueId", "uniqKey", "tags", "keys", F.sha2("body", 256).alias("body"),
        "bornTimestamp", "bornHost", "flag", "reconsumeTimes",
        F.sha2(F.to_json(F.array_sort(F.map_entries(properties))), 256).alias("properties"),
    ).orderBy("uniqKey")  # fmt: skip


def test_large_var_types(spark: SparkSession, served: Served) -> None:
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        write(numbers(spark, 100), served, topic=TOPIC)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    assert served.bodies(TOPIC, least=100) == bodies(100)


def test_two_stores(spark: SparkSession, serve: Serve) -> None:
    stores = [serve("a", brokerName="broker-a"), serve("b", brokerName="broker-b")]
    write(numbers(spark, 4000), *stores, topic=TOPIC)
    found = [store.bodies(TOPIC) for store in stores]
    assert found[0] + found[1] == bodies(4000)
    assert min(sum(part.values()) for part in found) > 1000


def test_an_empty_frame(spark: SparkSession, served: Served) -> None:
    write(numbers(spark, 0), served, topic=TOPIC)
    assert served.bodies(TOPIC) == Counter()


def test_at_least_once(spark: SparkSession, served: Served) -> None:
    write(numbers(spark, 5000), served, topic=TOPIC, deliveryGuarantee="at-least-once")
    assert served.bodies(TOPIC, least=5000) == bodies(5000)
    assert served.commits() == 0


# ---- all or nothing -----------------------------------------------------------------------------


def failing(frame: DataFrame, row: int) -> DataFrame:
    """Make one row fail its task, late."""
    wrong = F.raise_error(F.lit("this row fails")).cast("string")
    return frame.withColumn("body", F.when(F.col("body") == f"row-{row}", wrong).otherwise(
        F.col("body")))  # fmt: skip


@pytest.mark.spark_versions
def test_a_write_that_fails_leaves_nothing(spark: SparkSession, served: Served) -> None:
    frame = numbers(spark, 30_000)
    with pytest.raises(PySparkException, match="this row fails"):
        write(failing(frame, 29_999), served, topic=TOPIC)
    assert served.bodies(TOPIC) == Counter()
    write(frame, served, topic=TOPIC)
    assert served.bodies(TOPIC, least=30_000) == bodies(30_000)


def test_without_atomic_each_task_commits_alone(spark: SparkSession, served: Served) -> None:
    frame = numbers(spark, 3000)
    write(frame, served, topic=TOPIC, atomic="false", maxTransactionBytes="300k")
    assert served.bodies(TOPIC, least=3000) == bodies(3000)
    assert served.commits() == 3


def test_a_write_over_the_limit_leaves_nothing(spark: SparkSession, served: Served) -> None:
    with pytest.raises(PySparkException, match="set atomic=false"):
        write(numbers(spark, 3000), served, topic=TOPIC, maxTransactionBytes="300k")
    assert served.bodies(TOPIC) == Counter()
    served.wait_for_no_stage()


@pytest.mark.spark_versions
def test_a_write_with_txn_version_can_be_run_again(spark: SparkSession, served: Served) -> None:
    for atomic in ("true", "false"):
        for _ in range(2):
            write(
                numbers(spark, 500), served, topic=f"{TOPIC}-{atomic}", atomic=atomic,
                txnAppId=f"app-{atomic}", txnVersion=7,
            )  # fmt: skip
        assert served.bodies(f"{TOPIC}-{atomic}", least=500) == bodies(500)


@pytest.mark.parametrize("first", ["true", "false"])
def test_a_write_that_runs_again_with_another_atomic_is_refused(
    spark: SparkSession, served: Served, first: str
) -> None:
    second = {"true": "false", "false": "true"}[first]
    named = {"topic": TOPIC, "txnAppId": "nightly", "txnVersion": "7"}
    write(numbers(spark, 500), served, atomic=first, **named)
    commits = served.commits()
    with pytest.raises(PySparkException, match=r"no rows, because its tasks.*another value of at"):
        write(numbers(spark, 500), served, atomic=second, **named)
    assert served.bodies(TOPIC, least=500) == bodies(500)
    assert served.commits() == commits
    write(numbers(spark, 500), served, atomic=first, **named)
    assert served.bodies(TOPIC, least=500) == bodies(500)
    assert served.commits() == commits


def test_only_the_same_rows_count_as_written_under_a_txn_version(
    spark: SparkSession, served: Served
) -> None:
    """In any order and any partitions; not other bodies, keys or topics of the same lengths."""
    rows = numbers(spark, 500)
    again: dict[str, Any] = {"txnAppId": "app", "txnVersion": 1}
    write(rows, served, topic=TOPIC, **again)
    write(rows.orderBy(F.rand()).repartition(5), served, topic=TOPIC, **again)
    for others, topic, words in (
        (rows, "others", rf"{TOPIC}: 500, digest .* new commit has .*others: 500"),
        (rows.withColumn("body", F.reverse("body")), TOPIC, f"new commit has .*{TOPIC}: 500"),
        (rows.withColumn("keys", F.lit("key")), TOPIC, f"new commit has .*{TOPIC}: 500"),
    ):
        with pytest.raises(PySparkException, match=f"different content.*{words}") as caught:
            write(others, served, topic=topic, **again)
        assert "Give each target a txnAppId of its own" in str(caught.value)
    assert served.bodies(TOPIC, least=500) == bodies(500)
    assert served.bodies("others") == Counter()


# ---- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        (["body", "price"], {"topic": TOPIC}, "Column 'price' cannot be written"),
        (["keys"], {"topic": TOPIC}, "Column body is missing"),
        (["body"], {}, "No topic given"),
        (["body"], {"topic": TOPIC, "startingOffsets": "earliest"}, "is for reading"),
        (["body"], {"topic": TOPIC, "txnVersion": "1"}, "must be set together"),
        (["body"], {"topic": TOPIC, "deliveryGuarante": "x"}, "Did you mean deliveryGuarantee"),
    ],
)
def test_what_is_wrong_is_said_when_the_write_is_planned(
    spark: SparkSession, columns: list[str], options: dict[str, str], words: str
) -> None:
    frame = numbers(spark, 1).withColumn("price", F.lit(1.0)).select(*columns)
    writer = frame.write.format("rmqstore").mode("append").options(**options)
    with pytest.raises(PySparkException) as caught:
        writer.option("endpoint", "rmq://127.0.0.1:9").save()
    text = str(caught.value)
    assert words in text
    assert 'File "' not in text
    assert "During handling" not in text


def test_overwrite_is_refused(spark: SparkSession) -> None:
    writer = numbers(spark, 1).write.format("rmqstore").mode("overwrite")
    with pytest.raises(PySparkException, match="Mode overwrite is not supported"):
        writer.options(endpoint="rmq://127.0.0.1:9", topic=TOPIC).save()


def test_a_path_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="instead of a path"):
        numbers(spark, 1).write.format("rmqstore").mode("append").save(str(tmp_path))


def test_a_store_that_is_not_there(spark: SparkSession) -> None:
    writer = numbers(spark, 1).write.format("rmqstore").mode("append").options(retries=0)
    with pytest.raises(PySparkException, match=r"Nothing listens on rmq://127.0.0.1:9\. Start"):
        writer.options(endpoint="rmq://127.0.0.1:9", topic=TOPIC).save()


@pytest.mark.spark_versions
def test_a_row_that_cannot_be_stored_is_named(spark: SparkSession, served: Served) -> None:
    frame = numbers(spark, 500, 1).withColumn("body", F.when(F.col("body") != "row-77", F.col(
        "body")))  # fmt: skip
    with pytest.raises(PySparkException) as caught:
        write(frame, served, topic=TOPIC)
    text = str(caught.value)
    assert f"Row 77 of this task (topic '{TOPIC}') has null in column body" in text
    assert served.bodies(TOPIC) == Counter()


def test_a_body_that_is_too_long_is_told_in_the_task(spark: SparkSession, serve: Serve) -> None:
    store = serve(maxMessageSize=1000)
    frame = spark.sql("SELECT repeat('x', 1001) body")
    with pytest.raises(PySparkException, match=r"has a body of 1,001 bytes, .* at most 1,000"):
        write(frame, store, topic=TOPIC)


def test_tls_and_an_account_that_nothing_shows(
    spark: SparkSession, serve: Serve, tmp_path: Path
) -> None:
    certificates = make_certificates(tmp_path / "certificates")
    mine = account_file(tmp_path / "mine")
    other = account_file(tmp_path / "other", secret=SECRET[::-1])
    accounts = guarded(tmp_path / "accounts.yml")
    store = serve(
        tlsServerCertPath=certificates.server_cert, tlsServerKeyPath=certificates.server_key,
        tlsServerTrustCertPath=certificates.ca, tlsServerMode="enforcing",
        aclEnable=True, aclPath=accounts["acl_path"],
    )  # fmt: skip
    assert store.endpoint.startswith("rmqs://")
    options = {
        "topic": TOPIC, "aclFile": str(mine), "tlsCaFile": certificates.ca,
        "tlsCertFile": certificates.client_cert, "tlsKeyFile": certificates.client_key,
    }  # fmt: skip
    log = tmp_path / "driver.log"
    with driver_log(spark, log):
        write(numbers(spark, 100), store, **options)
        assert store.bodies(TOPIC, least=100) == bodies(100)
        with pytest.raises(PySparkException, match="requires an account, or rejected"):
            write(numbers(spark, 1), store, **options | {"aclFile": str(other)}, retries=0)
        with pytest.raises(PySparkException) as caught:
            write(numbers(spark, 1).withColumn("price", F.lit(1)), store, **options)
        assert "price" in str(caught.value)
        assert SECRET not in str(caught.value)
        reading = {name: value for name, value in options.items() if name != "topic"}
        reader = spark.read.format("rmqstore").option("endpoint", store.endpoint)
        frame = reader.options(**reading).load()
        assert frame.count() == 100
        with redirect_stdout(io.StringIO()) as plan:
            frame.explain("extended")
    logged = log.read_text()
    assert "AppendData" in logged
    assert "aclFile=" in logged
    assert "== Physical Plan ==" in plan.getvalue()
    key = Path(certificates.client_key).read_text().splitlines()[1]
    for secret in (SECRET, SECRET[::-1], key):
        assert secret not in logged
        assert secret not in plan.getvalue()
    assert SECRET not in store.process.output
