"""The backfill without Spark: its output, what it refuses, and the check of its totals."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rmqstore_spark.errors import CorruptRecordError, OptionError, RmqStoreError, ServiceError
from rmqstore_spark.pipelines.parquet.task import BackfillTask, PieceItem
from tests.broker.broker import broker, name_server, route
from tests.pipelines.running import data_files, read_back, run_backfill, run_here
from tests.support.accounts import account_file, guarded
from tests.support.processes.serving import block_of, served
from tests.support.stores.expected import backed_rows, log_rows, queue_key
from tests.support.stores.golden import load_records
from tests.support.stores.records import commitlog_folders
from tests.support.stores.storebuilder import Traffic, build_store
from tests.support.waiting import eventually

Golden = Callable[[str], Path]

STORES = ("basic", "flags", "lmq", "live", "multipath", "trimmed", "ipv6")


@pytest.mark.parametrize(
    ("name", "plan_by"),
    [*((name, by) for name in STORES for by in ("queue", "commitlog")), ("unclean-nocq", "auto")],
)
def test_golden_stores(name: str, plan_by: str, golden: Golden, tmp_path: Path) -> None:
    folder = golden(name)
    options = ["--includeSystemTopics", "true", "--planBy", plan_by]
    options += ["--maxBytesPerPartition", "300k"]
    if len(commitlog_folders(folder)) > 1:
        options += ["--storePathCommitLog", ",".join(map(str, commitlog_folders(folder)))]
    run_backfill(folder / "store", tmp_path / "out", *options)

    rows = read_back(tmp_path / "out")
    assert {row.pop("brokerName") for row in rows} == {name}
    for row in rows:
        assert row.pop("date") == row["storeTimestamp"].date().isoformat()
    expected = log_rows(folder) if name == "unclean-nocq" else backed_rows(folder)
    assert rows == sorted(expected, key=queue_key)


def test_a_store_is_read_through_its_process(tmp_path: Path) -> None:
    with served(tmp_path / "store", broker_name="ours") as here:
        assert here.store.put(block_of([b"a", b"b", b"c"], "orders")).ok
        here.store.flush()
        run_backfill(here.endpoint, tmp_path / "out")
    rows = read_back(tmp_path / "out")
    assert [(row["brokerName"], row["topic"], row["body"]) for row in rows] == [
        ("ours", "orders", body) for body in (b"a", b"b", b"c")
    ]


def test_a_store_process_with_accounts_is_read(tmp_path: Path) -> None:
    accounts = guarded(tmp_path / "plain_acl.yml", {"defaultTopicPerm": "SUB"})
    with served(tmp_path / "store", broker_name="ours", **accounts) as here:
        assert here.store.put(block_of([b"a", b"b"], "orders")).ok
        here.store.flush()
        with pytest.raises(ServiceError, match="aclFile"):
            run_backfill(here.endpoint, tmp_path / "none")
        account = account_file(tmp_path / "tools.yml")
        run_backfill(here.endpoint, tmp_path / "out", "--aclFile", str(account))
    assert [row["body"] for row in read_back(tmp_path / "out")] == [b"a", b"b"]


def test_a_broker_is_found_by_name_servers_and_pulled_from(tmp_path: Path) -> None:
    with (
        name_server(tmp_path) as servers,
        broker(tmp_path / "store", broker_name="theirs", namesrv_addr=servers) as here,
    ):
        here.store.create_topic("orders", write_queue_nums=1)
        assert here.store.put(block_of([b"a", b"b", b"c"], "orders")).ok
        here.store.flush()
        eventually(lambda: route(servers, "orders") is not None)
        run_backfill(f"namesrv://{servers}", tmp_path / "out", "--subscribe", "orders")
    rows = read_back(tmp_path / "out")
    assert [(row["brokerName"], row["body"]) for row in rows] == [
        ("theirs", body) for body in (b"a", b"b", b"c")
    ]


def test_rows_of_a_file_keep_the_order_of_their_queues(golden: Golden, tmp_path: Path) -> None:
    run_backfill(golden("basic") / "store", tmp_path / "out")
    for path in data_files(tmp_path / "out"):
        offsets: dict[int, list[int]] = {}
        for row in pq.read_table(path, columns=["queueId", "queueOffset"]).to_pylist():
            offsets.setdefault(row["queueId"], []).append(row["queueOffset"])
        assert all(found == sorted(found) for found in offsets.values())


def test_only_the_columns_that_are_asked_for(golden: Golden, tmp_path: Path, spark: Any) -> None:
    run_backfill(
        golden("live") / "store", tmp_path / "out",
        "--schema", "QUEUEOFFSET bigint, topic string, body string", "--subscribe", "LiveTopic",
    )  # fmt: skip
    (path,) = data_files(tmp_path / "out")
    assert pq.read_schema(path).names == ["queueOffset", "body"]
    records = [r for r in load_records(golden("live")) if r.topic == "LiveTopic"]
    found = pq.ParquetFile(path).read(["body"])["body"].to_pylist()
    assert sorted(found) == sorted(record.plain_body.decode() for record in records)


def test_options_of_the_source_choose_the_rows(
    golden: Golden, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_backfill(
        golden("live") / "store", tmp_path / "out",
        "--tags", "TagA || TagTx", "--broker-names", "b1",
        "--startingTimestamp", "2026-11-21T00:15:25Z",
    )  # fmt: skip
    assert "rows of 6 queue(s), chosen from " in capsys.readouterr().out
    rows = read_back(tmp_path / "out")
    assert {row["brokerName"] for row in rows} == {"b1"}
    wanted = [
        row
        for row in backed_rows(golden("live"))
        if row["topic"] in ("LiveTopic", "LiveTran")
        and row["tags"] in ("TagA", "TagTx")
        and row["storeTimestamp"].timestamp() >= 1795220125
    ]
    assert [queue_key(row) for row in rows] == [queue_key(row) for row in wanted]
    assert wanted


def test_a_day_ends_at_midnight_utc(tmp_path: Path) -> None:
    midnight = 1_700_006_400_000  # 2023-11-15T00:00:00Z
    store = build_store(
        tmp_path / "store", Traffic(40, {"t": 1}, first_time=midnight - 2, per_millisecond=10)
    )
    run_backfill(store, tmp_path / "out")
    days = {path.parent.name: pq.read_metadata(path).num_rows for path in data_files(tmp_path)}
    assert days == {"date=2023-11-14": 20, "date=2023-11-15": 20}


def test_large_files_are_cut(tmp_path: Path) -> None:
    store = build_store(tmp_path / "store", Traffic(30_000, {"a": 2, "b": 1}, body_size=200))
    run_backfill(
        store, tmp_path / "out", "--target-file-size", "500k", "--row-group-size", "1m",
        "--compression", "none",
    )  # fmt: skip
    files = data_files(tmp_path / "out")
    assert len({path.name for path in files}) == len(files) > 4
    groups = [
        metadata.row_group(number)
        for metadata in map(pq.read_metadata, files)
        for number in range(metadata.num_row_groups)
    ]
    assert sum(group.num_rows for group in groups) == 30_000
    assert max(group.total_byte_size for group in groups) < 1.2 * (1 << 20)


def test_a_finished_backfill_does_nothing_again(
    golden: Golden, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(work: Sequence[PieceItem], task: BackfillTask) -> list[Any]:
        raise AssertionError

    run_backfill(golden("tiny") / "store", tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in data_files(tmp_path / "out")}
    run_backfill(golden("tiny") / "store", tmp_path / "out", run=never)
    assert {path: path.stat().st_mtime_ns for path in data_files(tmp_path / "out")} == before
    assert "already finished" in capsys.readouterr().out


def test_other_arguments_are_refused(golden: Golden, tmp_path: Path) -> None:
    run_backfill(golden("tiny") / "store", tmp_path / "out", "--tags", "TagA")
    with pytest.raises(OptionError, match="tags was 'TagA' and is now 'TagB'"):
        run_backfill(golden("tiny") / "store", tmp_path / "out", "--tags", "TagB")
    with pytest.raises(OptionError, match="path was"):
        run_backfill(golden("basic") / "store", tmp_path / "out", "--tags", "TagA")


def test_the_same_path_from_another_folder_is_another_store(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(golden("tiny"))
    run_backfill("store", tmp_path / "out")
    monkeypatch.chdir(golden("basic"))
    with pytest.raises(OptionError, match="path was"):
        run_backfill("store", tmp_path / "out")


def test_a_folder_with_something_else_is_refused(golden: Golden, tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear all")
    with pytest.raises(OptionError, match="is not empty"):
        run_backfill(golden("tiny") / "store", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letters.txt"]


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--compression", "lzo", "one of zstd"),
        ("--schema", "no such", "must be like"),
        ("--schema", "topic string", "besides topic"),
        ("--schema", "colour string", "colour"),
        ("--startingOffsets", "latest", "cannot start at latest"),
        ("--subscribe", "nobody", "Topic 'nobody' does not exist"),
    ],
)
def test_wrong_arguments_leave_nothing_behind(
    option: str, value: str, words: str, golden: Golden, tmp_path: Path, spark: Any
) -> None:
    with pytest.raises(RmqStoreError, match=words):
        run_backfill(golden("basic") / "store", tmp_path / "out", option, value)
    assert not (tmp_path / "out").exists()


def test_damage_ends_it_and_publishes_nothing(damaged: Path, tmp_path: Path) -> None:
    with pytest.raises(CorruptRecordError, match="bodyCRC"):
        run_backfill(damaged, tmp_path / "out")
    assert data_files(tmp_path / "out") == []


def test_damage_that_is_skipped_is_told(
    damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_backfill(damaged, tmp_path / "out", "--mode", "DROPMALFORMED", "--includeSystemTopics=true")
    assert len(read_back(tmp_path / "out")) == 1999
    told = capsys.readouterr().out
    assert told.startswith("1,999 rows of 12 queue(s), 1 expired or damaged ones skipped: ")


def test_topics_that_spark_would_read_as_numbers_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for topics, told in ({"007": 1, "1e5": 1}, True), ({"007": 1, "a": 1}, False):
        store = build_store(tmp_path / str(told) / "store", Traffic(10, topics))
        run_backfill(store, tmp_path / str(told) / "out")
        assert ("look like numbers" in capsys.readouterr().out) is told


@pytest.mark.parametrize(
    ("tampering", "words"),
    [
        ("fewer", "rows differ from the plan: T/0 of tiny: "),
        ("more", "rows differ from the plan: T/0 of tiny: "),
        ("fewer in files", "60 rows were read, but 59 were written"),
    ],
)
def test_totals_must_be_those_of_the_plan(
    tampering: str, words: str, golden: Golden, tmp_path: Path
) -> None:
    def tamper(work: Sequence[PieceItem], task: BackfillTask) -> list[dict[str, Any]]:
        plan = tmp_path / "out" / "_backfill" / "plan.json"
        assert json.loads(plan.read_text())["pieces"]
        done = run_here(work, task)
        change = 1 if tampering == "more" else -1
        done[0]["files"][0]["rows"] += change
        if tampering != "fewer in files":
            queue = done[0]["queues"][0]
            done[0]["queues"][0] = [*queue[:3], queue[3] + change]
        return done

    with pytest.raises(RmqStoreError, match=words):
        run_backfill(golden("tiny") / "store", tmp_path / "out", run=tamper)
    assert data_files(tmp_path / "out") == []
