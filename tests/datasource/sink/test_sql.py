"""Every way into and out of a table of SQL, with two tables on two stores: which store is it?"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException

from rmqstore_spark.reader import Store
from rmqstore_spark.reader.options import ReadOptions
from tests.datasource.sink.serving import Served

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "orders"
A, B = Counter({b"a-0": 1, b"a-1": 1, b"a-2": 1}), Counter({b"b-0": 1, b"b-1": 1})
ENDPOINT_MISSING = r"Option endpoint is missing.*df\.write.*INSERT INTO t WITH"
NO_STORE = "Option path is missing"


@dataclass(frozen=True)
class Shop:
    """Two stores, a table on each, and names that are used once."""

    spark: SparkSession
    a: Served
    b: Served
    folder: Path
    numbers: Iterator[int]

    def name(self) -> str:
        """A name for a topic, table or folder that no other test uses."""
        return f"t{next(self.numbers)}"

    def sql(self, text: str) -> DataFrame:
        """Run a statement in which {a}, {b} are the endpoints."""
        return self.spark.sql(text.format(a=self.a.endpoint, b=self.b.endpoint))

    def rows(self) -> DataFrame:
        """The rows of the table on A."""
        return self.spark.table("table_a")


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    a, b = Served(folder / "a" / "store"), Served(folder / "b" / "store")
    shop = Shop(spark, a, b, folder, itertools.count())
    for store, wanted in ((a, A), (b, B)):
        rows = [(body.decode(), TOPIC) for body in wanted]
        frame = spark.createDataFrame(rows, "body string, topic string")
        frame.write.format("rmqstore").option("endpoint", store.endpoint).mode("append").save()
        assert store.bodies(TOPIC, least=len(wanted)) == wanted
    shop.sql(f"CREATE TABLE table_a USING rmqstore OPTIONS (endpoint '{{a}}', subscribe '{TOPIC}')")
    shop.sql(f"CREATE TABLE table_b USING rmqstore OPTIONS (endpoint '{{b}}', topic '{TOPIC}')")
    shop.sql("CREATE VIEW view_a AS SELECT * FROM table_a")
    yield shop
    spark.sql("DROP VIEW view_a")
    for table in ("table_a", "table_b"):
        spark.sql(f"DROP TABLE {table}")
    a.process.stop()
    b.process.stop()


@pytest.fixture
def unchanged(shop: Shop) -> Iterator[None]:
    """Check that a test leaves no row in either store, and no table."""
    before = [logged(shop.a), logged(shop.b)]
    yield
    assert [logged(shop.a), logged(shop.b)] == before
    tables = {row.tableName for row in shop.spark.sql("SHOW TABLES").collect()}
    assert tables == {"table_a", "table_b", "view_a"}


def logged(store: Served) -> Counter[tuple[str, bytes]]:
    """The messages of all topics, in queues or not."""
    found: Counter[tuple[str, bytes]] = Counter()
    with Store.open(str(store.path)) as opened:
        for batch in opened.scan(options=ReadOptions(columns=("topic", "body"))):
            found.update((row["topic"], row["body"]) for row in batch.to_pylist())
    return found


def bodies(frame: DataFrame) -> Counter[bytes]:
    return Counter(bytes(row.body) for row in frame.select("body").collect())


# ---- into a table: refused ----------------------------------------------------------------------


def stream_to(shop: Shop, table: str, **options: str) -> None:
    stream = shop.spark.readStream.option("startingOffsets", "earliest").table("table_a")
    checkpoint = str(shop.folder / shop.name())
    writer = stream.writeStream.option("checkpointLocation", checkpoint).options(**options)
    query = writer.format("rmqstore").trigger(availableNow=True).toTable(table)
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()


def parquet_of(shop: Shop) -> DataFrame:
    folder = str(shop.folder / shop.name())
    shop.rows().write.parquet(folder)
    return shop.spark.read.parquet(folder)


def insert_copy(shop: Shop) -> None:
    """From a table of another format that keeps its columns' metadata, as Delta's do."""
    shop.sql("CREATE TABLE copy USING json AS SELECT * FROM table_a")
    try:
        shop.sql("INSERT INTO table_b SELECT * FROM copy")
    finally:
        shop.sql("DROP TABLE copy")


REFUSED: dict[str, Callable[[Shop], Any]] = {
    "by position": lambda s: s.sql("INSERT INTO table_b SELECT * FROM table_a"),
    "by name": lambda s: s.sql("INSERT INTO table_b BY NAME SELECT * FROM table_a"),
    "by list": lambda s: s.sql("INSERT INTO table_b (body) VALUES (binary('x'))"),
    "of itself": lambda s: s.sql("INSERT INTO table_a SELECT * FROM table_a"),
    "only a topic": lambda s: s.sql("INSERT INTO table_b WITH (topic='x') SELECT * FROM table_a"),
    "view": lambda s: s.sql("INSERT INTO table_b SELECT * FROM view_a"),
    "union": lambda s: s.sql(
        "INSERT INTO table_b SELECT * FROM table_a UNION ALL SELECT * FROM table_b"
    ),
    "join": lambda s: s.sql(
        "INSERT INTO table_b BY NAME SELECT a.* FROM table_a a JOIN table_b b USING (queueId)"
    ),
    "copy": insert_copy,
    "parquet": lambda s: parquet_of(s).write.insertInto("table_b"),
    "insertInto": lambda s: s.rows().write.insertInto("table_b"),
    "insertInto with options": lambda s: (
        s.rows().write.option("endpoint", s.b.endpoint).insertInto("table_b")
    ),
    "writeTo": lambda s: s.rows().writeTo("table_b").append(),
    "saveAsTable": lambda s: (
        s.rows().write.format("rmqstore").mode("append").saveAsTable("table_b")
    ),
    "CTAS": lambda s: s.sql(
        "CREATE TABLE made USING rmqstore OPTIONS (endpoint '{b}', topic 'x') AS "
        "SELECT * FROM table_a"
    ),
    "saveAsTable of a new one": lambda s: (
        s.rows().write.format("rmqstore").mode("append").saveAsTable("made")
    ),
    "writeTo.create": lambda s: s.rows().writeTo("made").using("rmqstore").create(),
    "stream": lambda s: stream_to(s, "table_b"),
}


@pytest.mark.parametrize("way", REFUSED)
@pytest.mark.usefixtures("unchanged")
def test_a_write_that_names_no_store_is_refused(shop: Shop, way: str) -> None:
    with pytest.raises(PySparkException, match=ENDPOINT_MISSING):
        REFUSED[way](shop)


@pytest.mark.parametrize(
    "write",
    [
        lambda s: s.sql("INSERT OVERWRITE table_b SELECT * FROM table_a"),
        lambda s: s.sql("INSERT OVERWRITE table_b WITH (endpoint='{b}') SELECT * FROM table_a"),
        lambda s: s.rows().write.insertInto("table_b", overwrite=True),
    ],
)
@pytest.mark.usefixtures("unchanged")
def test_an_overwrite_is_refused(shop: Shop, write: Callable[[Shop], Any]) -> None:
    with pytest.raises(PySparkException, match="Mode overwrite is not supported"):
        write(shop)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM table_b",
        "TRUNCATE TABLE table_b",
        "UPDATE table_b SET flag = 1",
        "MERGE INTO table_b USING table_a a ON a.flag = 1 WHEN NOT MATCHED THEN INSERT *",
        "INSERT INTO table_b REPLACE WHERE flag = 0 SELECT * FROM table_a",
    ],
)
@pytest.mark.usefixtures("unchanged")
def test_what_changes_rows_is_refused(shop: Shop, statement: str) -> None:
    with pytest.raises(PySparkException, match=r"(?i)not support"):
        shop.sql(statement)


# ---- into a store that the write names ----------------------------------------------------------


def insert_into_view(shop: Shop, topic: str, insert: str) -> None:
    view = shop.name()
    shop.sql(
        f"CREATE TEMPORARY VIEW {view} USING rmqstore OPTIONS (endpoint '{{b}}', topic '{topic}')"
    )
    try:
        shop.sql(insert.format(view=view))
    finally:
        shop.spark.catalog.dropTempView(view)


ALLOWED: dict[str, Callable[[Shop, str], Any]] = {
    "save": lambda s, topic: (
        s.rows()
        .write.format("rmqstore")
        .options(endpoint=s.b.endpoint, topic=topic)
        .mode("append")
        .save()
    ),
    "save of a copy": lambda s, topic: (
        parquet_of(s)
        .write.format("rmqstore")
        .options(endpoint=s.b.endpoint, topic=topic)
        .mode("append")
        .save()
    ),
    "by position": lambda s, topic: s.sql(
        f"INSERT INTO table_b WITH (endpoint='{{b}}', topic='{topic}') SELECT * FROM table_a"
    ),
    "by name": lambda s, topic: s.sql(
        f"INSERT INTO table_b WITH (endpoint='{{b}}', topic='{topic}') BY NAME "
        "SELECT body, tags FROM table_a"
    ),
    "into the table that is read": lambda s, topic: s.sql(
        f"INSERT INTO table_a WITH (endpoint='{{b}}', topic='{topic}') "
        "SELECT * FROM table_a WITH (endpoint='{a}', subscribe='orders')"
    ),
    "writeTo": lambda s, topic: (
        s.rows().writeTo("table_b").options(endpoint=s.b.endpoint, topic=topic).append()
    ),
    "saveAsTable": lambda s, topic: (
        s.rows()
        .write.format("rmqstore")
        .options(endpoint=s.b.endpoint, topic=topic)
        .mode("append")
        .saveAsTable("table_b")
    ),
    "temporary view by position": lambda s, topic: insert_into_view(
        s, topic, "INSERT INTO {view} SELECT * FROM table_a"
    ),
    "temporary view by name": lambda s, topic: insert_into_view(
        s, topic, "INSERT INTO {view} BY NAME SELECT body FROM view_a"
    ),
    "stream": lambda s, topic: stream_to(s, "table_b", endpoint=s.b.endpoint, topic=topic),
}


@pytest.mark.parametrize("way", ALLOWED)
def test_rows_go_to_the_store_that_the_write_names(shop: Shop, way: str) -> None:
    topic = shop.name()
    ALLOWED[way](shop, topic)
    assert shop.b.bodies(topic, least=len(A)) == A
    assert shop.a.bodies(topic) == Counter()
    assert shop.a.bodies(TOPIC) == A
    assert shop.b.bodies(TOPIC) == B


def make_by_save(shop: Shop, table: str, topic: str) -> None:
    writer = shop.rows().write.format("rmqstore").options(endpoint=shop.b.endpoint, topic=topic)
    writer.mode("append").saveAsTable(table)


def make_by_create(shop: Shop, table: str, topic: str) -> None:
    writer = shop.rows().writeTo(table).using("rmqstore")
    writer.options(endpoint=shop.b.endpoint, topic=topic).create()


def make_by_stream(shop: Shop, table: str, topic: str) -> None:
    stream_to(shop, table, endpoint=shop.b.endpoint, topic=topic)


@pytest.mark.parametrize("make", [make_by_save, make_by_create, make_by_stream])
def test_a_table_made_by_a_write_has_no_store_to_read(
    shop: Shop, make: Callable[[Shop, str, str], None]
) -> None:
    """Spark gives it the columns of the rows, and no options: it must not read their store."""
    table, topic = shop.name(), shop.name()
    try:
        make(shop, table, topic)
        assert shop.b.bodies(topic, least=len(A)) == A
        assert shop.a.bodies(topic) == Counter()
        with pytest.raises(PySparkException, match=NO_STORE):
            shop.spark.table(table).count()
    finally:
        shop.sql(f"DROP TABLE IF EXISTS {table}")


# ---- out of a table -----------------------------------------------------------------------------


def test_two_tables_in_one_query(shop: Shop) -> None:
    assert bodies(shop.sql("SELECT * FROM table_a UNION ALL SELECT * FROM table_b")) == A + B
    joined = shop.sql(
        "SELECT string(a.body) a, string(b.body) b FROM table_a a CROSS JOIN table_b b"
    )
    pairs = [(a.decode(), b.decode()) for a in A for b in B]
    wanted = shop.spark.createDataFrame(pairs, "a string, b string")
    assert_df_equality(joined, wanted, ignore_row_order=True, ignore_nullable=True)
    assert bodies(shop.sql("SELECT * FROM view_a UNION ALL SELECT * FROM table_b")) == A + B


def test_options_of_a_query_go_before_those_of_the_table(shop: Shop) -> None:
    named = shop.sql(f"SELECT * FROM table_a WITH (endpoint='{{b}}', subscribe='{TOPIC}')")
    assert bodies(named) == B
    assert bodies(shop.spark.read.option("tags", "none").table("table_a")) == Counter()
    assert bodies(shop.rows()) == A


def test_two_tables_in_one_stream(shop: Shop) -> None:
    read = shop.spark.readStream.option("startingOffsets", "earliest")
    frame = read.table("table_a").unionAll(read.table("table_b"))
    found: Counter[bytes] = Counter()
    query = (
        frame.writeStream.foreachBatch(lambda part, _: found.update(bodies(part)))
        .option("checkpointLocation", str(shop.folder / shop.name()))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    assert found == A + B


SCHEMAS: dict[str, Callable[[Shop], Any]] = {
    "table": lambda s: s.rows().schema,
    "columns of it": lambda s: s.rows().select("brokerName", "body").schema,
    "view": lambda s: s.spark.table("view_a").schema,
    "query": lambda s: s.sql("SELECT * FROM table_a WHERE queueId = 0").schema,
    "stream": lambda s: s.spark.readStream.table("table_a").schema,
    "parquet": lambda s: parquet_of(s).schema,
}


@pytest.mark.parametrize("source", SCHEMAS)
def test_a_schema_carries_no_store(shop: Shop, source: str) -> None:
    assert all(field.metadata == {} for field in SCHEMAS[source](shop).fields)


def test_a_schema_of_a_table_reads_no_store(shop: Shop) -> None:
    """Neither in a read that names none, nor in another table."""
    schema = shop.rows().schema
    with pytest.raises(PySparkException, match=NO_STORE):
        shop.spark.read.format("rmqstore").schema(schema).load().count()
    named = shop.spark.read.format("rmqstore").schema(schema).option("endpoint", shop.b.endpoint)
    assert bodies(named.option("subscribe", TOPIC).load()) == B
    table = shop.name()
    try:
        with pytest.raises(PySparkException, match=NO_STORE):
            shop.spark.catalog.createTable(
                table, source="rmqstore", schema=schema, endpoint=shop.b.endpoint
            ).count()
    finally:
        shop.sql(f"DROP TABLE IF EXISTS {table}")


def test_a_table_that_is_changed_keeps_its_store(shop: Shop) -> None:
    old, new = shop.name(), shop.name()
    shop.sql(f"CREATE TABLE {old} USING rmqstore OPTIONS (endpoint '{{b}}', topic '{TOPIC}')")
    try:
        shop.sql(f"ALTER TABLE {old} ALTER COLUMN brokerName COMMENT 'where it was stored'")
        shop.sql(f"ALTER TABLE {old} RENAME TO {new}")
        assert bodies(shop.spark.table(new)) == B
    finally:
        shop.sql(f"DROP TABLE IF EXISTS {old}")
        shop.sql(f"DROP TABLE IF EXISTS {new}")


def test_a_table_made_by_the_catalog(shop: Shop) -> None:
    table = shop.name()
    try:
        made = shop.spark.catalog.createTable(
            table, source="rmqstore", endpoint=shop.b.endpoint, subscribe=TOPIC
        )
        assert bodies(made) == B
        assert bodies(shop.spark.table(table)) == B
    finally:
        shop.sql(f"DROP TABLE IF EXISTS {table}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("endpoint 'rmq://h:1', deliveryGuarantee 'at-least-once'", "is for writing"),
        ("subscribe 'orders'", NO_STORE),
        ("path '/data', endpoint 'rmq://h:1'", "path and endpoint contradict"),
    ],
)
@pytest.mark.usefixtures("unchanged")
def test_a_table_that_could_not_be_read_is_not_made(shop: Shop, options: str, words: str) -> None:
    with pytest.raises(PySparkException, match=words):
        shop.sql(f"CREATE TABLE wrong USING rmqstore OPTIONS ({options})")
