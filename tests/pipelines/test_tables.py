"""The backfill into Delta and Iceberg tables, without Spark: what readers find, what is refused."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from rmqstore_spark.errors import InstallationError, OptionError, RmqStoreError
from rmqstore_spark.pipelines.parquet.task import BackfillTask, PieceItem
from tests.pipelines.lakehouse import FORMATS, READERS, LakeHouse, rows_of
from tests.pipelines.processes import ROOT
from tests.pipelines.running import Killed, run_backfill
from tests.support.stores.expected import backed_rows, queue_key
from tests.support.stores.storebuilder import Traffic, build_store

Golden = Callable[[str], Path]


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> LakeHouse:
    return LakeHouse(request.param, tmp_path / "lake")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", ["basic", "flags", "lmq"])
def test_what_readers_find(name: str, reader: str, lake: LakeHouse, golden: Golden) -> None:
    run_backfill(
        golden(name) / "store", *lake.arguments, "--includeSystemTopics", "true",
        "--maxBytesPerPartition", "300k",
    )  # fmt: skip
    rows = rows_of(lake.read(reader))
    for row in rows:
        assert row.pop("brokerName") == name
        assert row.pop("date") == row["storeTimestamp"].date()
    assert rows == backed_rows(golden(name))
    assert lake.commits() == 1


def test_bounds_let_readers_skip_files(lake: LakeHouse, golden: Golden) -> None:
    run_backfill(
        golden("basic") / "store", *lake.arguments, "--planBy", "commitlog",
        "--maxBytesPerPartition", "100k",
    )  # fmt: skip
    rows = rows_of(lake.read())
    middle = sorted(row["physicalOffset"] for row in rows)[len(rows) // 2]
    found = rows_of(lake.read("polars", where=f'"physicalOffset" < {middle}'))
    assert found == [row for row in rows if row["physicalOffset"] < middle]
    if lake.to == "delta":
        actions = pa.table(lake.delta().get_add_actions(flatten=True))
        skipped = pc.sum(pc.greater_equal(actions["min.physicalOffset"], middle)).as_py()
        assert pc.sum(actions["num_records"]).as_py() == len(rows)
        assert min(actions["min.storeTimestamp"].to_pylist()) == min(
            row["storeTimestamp"] for row in rows
        )
    else:
        scan = lake.iceberg().scan(row_filter=f"physicalOffset < {middle}")
        skipped = len(lake.files()) - len(list(scan.plan_files()))
    assert skipped > 0


def test_only_the_columns_that_are_asked_for(lake: LakeHouse, golden: Golden, spark: Any) -> None:
    run_backfill(
        golden("live") / "store", *lake.arguments,
        "--schema", "QUEUEOFFSET bigint, body string", "--subscribe", "LiveTopic",
    )  # fmt: skip
    rows = lake.read()
    assert sorted(rows.column_names) == ["body", "date", "queueOffset", "topic"]
    wanted = [r["body"].decode() for r in backed_rows(golden("live")) if r["topic"] == "LiveTopic"]
    assert sorted(rows["body"].to_pylist()) == sorted(wanted)


def test_days_of_utc_and_times_without_a_day(tmp_path: Path, lake: LakeHouse) -> None:
    midnight = 1_700_006_400_000  # 2023-11-15T00:00:00Z
    store = build_store(
        tmp_path / "store", Traffic(40, {"t": 1}, first_time=midnight - 2, per_millisecond=10)
    )
    run_backfill(store, *lake.arguments)
    for reader in READERS:
        days = lake.read(reader)["date"].to_pylist()
        assert Counter(days) == {dt.date(2023, 11, 14): 20, dt.date(2023, 11, 15): 20}


def test_a_store_without_messages(tmp_path: Path, lake: LakeHouse) -> None:
    store = build_store(tmp_path / "store", Traffic(0, {"t": 1}))
    for _ in range(2):
        run_backfill(store, *lake.arguments)
        assert len(lake.read()) == 0


def test_following_ranges_append(
    tmp_path: Path, lake: LakeHouse, golden: Golden, capsys: pytest.CaptureFixture[str]
) -> None:
    store = golden("tiny") / "store"
    until = json.dumps({"T": {"0": 5, "1": 7}})
    run_backfill(store, *lake.arguments, "--subscribe", "T", "--endingOffsets", until)
    first = rows_of(lake.read())
    assert [row["queueOffset"] for row in first] == [*range(5), *range(7)]
    run_backfill(store, *lake.arguments, "--subscribe", "T", "--startingOffsets", until)
    rows = rows_of(lake.read())
    expected = [row for row in backed_rows(golden("tiny")) if row["topic"] == "T"]
    assert list(map(queue_key, rows)) == list(map(queue_key, expected))
    assert lake.commits() == 2


@pytest.mark.parametrize("change", ["--compression=snappy", "--maxBytesPerPartition=1k"])
@pytest.mark.parametrize("state", ["finished", "unfinished"])
def test_the_same_messages_again_are_refused(
    state: str, change: str, lake: LakeHouse, golden: Golden
) -> None:
    store = golden("tiny") / "store"

    def ended(work: Sequence[PieceItem], task: BackfillTask) -> list[Any]:
        raise Killed

    if state == "finished":
        run_backfill(store, *lake.arguments)
    else:
        with pytest.raises(Killed):
            run_backfill(store, *lake.arguments, run=ended)
    with pytest.raises(OptionError, match=r"T/0 of tiny from 0 to \d+: repeat its arguments"):
        run_backfill(store, *lake.arguments, change)
    run_backfill(store, *lake.arguments)
    assert len(lake.read()) == 60


def test_another_store_of_the_same_name_needs_a_name_of_its_own(
    tmp_path: Path, lake: LakeHouse, golden: Golden
) -> None:
    store, other = golden("tiny") / "store", tmp_path / "tiny" / "store"
    shutil.copytree(store, other)
    run_backfill(store, *lake.arguments)
    with pytest.raises(OptionError, match=r"another store, give this one a name .*--brokerNames"):
        run_backfill(other, *lake.arguments)
    with pytest.raises(OptionError, match=r"another table\. To give it up"):
        run_backfill(store, *lake.arguments, "--subscribe", "T")
    run_backfill(other, *lake.arguments, "--brokerNames", "other")
    assert Counter(lake.read()["brokerName"].to_pylist()) == {"tiny": 60, "other": 60}


def test_topics_that_look_like_numbers_stay_text(
    tmp_path: Path, lake: LakeHouse, capsys: pytest.CaptureFixture[str]
) -> None:
    run_backfill(build_store(tmp_path / "store", Traffic(10, {"007": 1})), *lake.arguments)
    assert "look like numbers" not in capsys.readouterr().out
    for reader in READERS[:3]:
        assert set(lake.read(reader)["topic"].to_pylist()) == {"007"}


def test_parts_by_tag_may_follow_each_other(lake: LakeHouse, golden: Golden) -> None:
    store = golden("live") / "store"
    tags = ("TagA", "TagB")
    for tag in tags:
        run_backfill(store, *lake.arguments, "--tags", tag)
    counts = Counter(lake.read()["tags"].to_pylist())
    rows = [row for row in backed_rows(golden("live")) if row["topic"].startswith("Live")]
    assert counts == Counter(row["tags"] for row in rows if row["tags"] in tags)
    assert len(counts) == 2
    with pytest.raises(OptionError, match="repeat its arguments"):
        run_backfill(store, *lake.arguments)


def test_a_finished_backfill_does_nothing_again(
    lake: LakeHouse, golden: Golden, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(work: Sequence[PieceItem], task: BackfillTask) -> list[Any]:
        raise AssertionError

    run_backfill(golden("tiny") / "store", *lake.arguments)
    (first,) = capsys.readouterr().out.splitlines()
    run_backfill(golden("tiny") / "store", *lake.arguments, run=never)
    again, report = capsys.readouterr().out.splitlines()
    assert again == "This backfill is already finished."
    assert report.rpartition(";")[0] == first.rpartition(";")[0]
    # Even if somebody cleans up behind it.
    shutil.rmtree(lake.data / "_backfill")
    run_backfill(golden("tiny") / "store", *lake.arguments, run=never)
    assert capsys.readouterr().out == "This backfill is already finished.\n"
    assert len(lake.read()) == 60


def other_table(lake: LakeHouse, schema: pa.Schema, partitions: list[str]) -> None:
    if lake.to == "delta":
        deltalake.DeltaTable.create(lake.data, deltalake.Schema.from_arrow(schema),
                                    partition_by=partitions)  # fmt: skip
        return
    lake.folder.mkdir()
    catalog = lake.catalog
    catalog.create_namespace("rmq")
    table = catalog.create_table("rmq.messages", schema)
    with table.update_spec() as change:
        for column in partitions:
            change.add_identity(column)


# Nobody listens there.
NO_S3 = " ".join(
    f"--storage-option {each}"
    for each in (
        "AWS_ENDPOINT_URL=http://127.0.0.1:1", "AWS_ALLOW_HTTP=true", "AWS_ACCESS_KEY_ID=a",
        "AWS_SECRET_ACCESS_KEY=b", "max_retries=0",
    )
)  # fmt: skip

WHOLE = pa.schema([("queueOffset", pa.int64()), ("topic", pa.string()), ("date", pa.date32())])


@pytest.mark.parametrize(
    ("schema", "partitions", "words"),
    [
        (WHOLE, ["topic"], "is partitioned by topic, but must be by topic, date"),
        (WHOLE, [], "is partitioned not, but must be by topic, date"),
        (WHOLE, ["date", "topic"], "is partitioned by date, topic"),
        (
            WHOLE.append(pa.field("price", pa.int32())),
            ["topic", "date"],
            "price is int.* there, and missing here",
        ),
        (WHOLE.set(0, pa.field("queueOffset", pa.int32())), ["topic", "date"],
         "queueOffset is int.* there, and (long|int64) here"),
        (WHOLE.remove(0), ["topic", "date"], "queueOffset is missing there"),
    ],
)  # fmt: skip
def test_another_table_is_refused(
    schema: pa.Schema,
    partitions: list[str],
    words: str,
    lake: LakeHouse,
    golden: Golden,
    spark: Any,
) -> None:
    other_table(lake, schema, partitions)
    with pytest.raises(OptionError, match=words):
        run_backfill(golden("tiny") / "store", *lake.arguments, "--schema", "queueOffset bigint")
    assert not (lake.data / "_backfill").exists()
    assert lake.commits() == 0


def test_a_table_of_somebody_else_is_appended_to(
    lake: LakeHouse, golden: Golden, spark: Any
) -> None:
    # Columns in another order, and rows that are there already.
    order = pa.schema([WHOLE.field(2), WHOLE.field(0), WHOLE.field(1)])
    other_table(lake, order, ["topic", "date"])
    row = pa.table({"date": [dt.date(2020, 1, 1)], "queueOffset": [7], "topic": ["a"]}, order)
    if lake.to == "delta":
        deltalake.write_deltalake(lake.data, row, mode="append")
    else:
        lake.iceberg().append(row)
    run_backfill(golden("tiny") / "store", *lake.arguments, "--schema", "queueOffset bigint")
    for reader in READERS[:3]:
        rows = lake.read(reader)
        assert len(rows) == 61
        assert rows.filter(pc.equal(rows["topic"], "a")).select(WHOLE.names).to_pylist() == [
            {"queueOffset": 7, "topic": "a", "date": dt.date(2020, 1, 1)}
        ]


def test_delta_tables_with_rules_that_files_would_bypass(tmp_path: Path, golden: Golden) -> None:
    lake = LakeHouse("delta", tmp_path)
    run_backfill(golden("tiny") / "store", *lake.arguments)
    lake.delta().alter.add_constraint({"positive": "queueOffset >= 0"})
    with pytest.raises(OptionError, match=r"has delta\.constraints\.positive, which"):
        run_backfill(golden("basic") / "store", *lake.arguments)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("out --to delta --warehouse w", "--to delta does not accept --warehouse."),
        ("out --file-option a=b", "--to parquet does not accept --file-option."),
        ("out --to delta --storage-option secret", "--storage-option must be NAME=VALUE."),
        ("out --to iceberg", "An Iceberg table has a name such as rocketmq.messages, not 'out'."),
        ("a.b --to iceberg --warehouse s3://b", "--warehouse must be a folder on this machine,"),
        ("a.b --to iceberg --warehouse w --catalog c", "--catalog and --warehouse exclude each"),
        ("a.b --to iceberg --catalog nobody", "The catalog cannot be opened: ValueError: "),
        ("out --to delta --through-dataframe", "--to delta excludes --through-dataframe"),
        ("out --to delta --compression lzo", "--compression must be one of"),
        (f"s3://bucket/x --to delta {NO_S3}", "The folder s3://bucket/x cannot be read: "),
    ],
)
def test_wrong_arguments_leave_nothing_behind(
    words: str, error: str, golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    with pytest.raises(RmqStoreError) as raised:
        run_backfill(golden("tiny") / "store", *words.split())
    assert str(raised.value).startswith(error)
    assert str(raised.value).isprintable()  # deltalake's own has colours and lines
    assert list(tmp_path.iterdir()) == []


OLDEST = {"deltalake": "1.6", "pyiceberg": "0.12", "sqlalchemy": "2.0"}


@pytest.mark.parametrize(
    ("to", "package"), [("delta", "deltalake"), ("iceberg", "pyiceberg"), ("iceberg", "sqlalchemy")]
)
def test_a_missing_package_is_told(to: str, package: str, golden: Golden, tmp_path: Path) -> None:
    oldest = OLDEST[package]
    program = f"""
import sys
sys.modules["{package}"] = None  # an import of it fails
from rmqstore_spark.pipelines import backfill, stream_to_parquet
sys.exit(backfill.main(sys.argv[1:]))
"""
    store = golden("tiny") / "store"
    done = subprocess.run(
        [sys.executable, "-c", program, str(store), *LakeHouse(to, tmp_path / "x").arguments],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"error: --to {to} needs {package} {oldest} or newer where the job is started, which has "
        f"none. Install it: pip install 'rmqstore-spark[{to}]'\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("to", "found"), [("delta", "1.5.1"), ("iceberg", "0.11.1")])
def test_an_old_package_is_told(
    to: str, found: str, golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmqstore_spark.pipelines.tables.arguments.version", lambda name: found)
    with pytest.raises(InstallationError, match=f"or newer where .*, which has {found}"):
        run_backfill(golden("tiny") / "store", *LakeHouse(to, tmp_path / "x").arguments)
    assert list(tmp_path.iterdir()) == []


def test_versions_are_those_that_are_installed() -> None:
    extras = (ROOT / "pyproject.toml").read_text()
    assert f'delta = ["deltalake>={OLDEST["deltalake"]}"]' in extras
    assert f'iceberg = ["pyiceberg[sql-sqlite]>={OLDEST["pyiceberg"]}"]' in extras
