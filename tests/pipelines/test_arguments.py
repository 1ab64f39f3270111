"""The command lines of the jobs: what they accept, and how they report what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from rmqstore_spark.datasource.options.option import BATCH, STREAM
from rmqstore_spark.datasource.options.table import READING
from rmqstore_spark.pipelines import backfill, copy_topic, replay, stream_to_parquet, verify_store
from rmqstore_spark.pipelines.arguments import Job, StoreArguments
from rmqstore_spark.pipelines.parquet.files import CODECS

Capture = pytest.CaptureFixture[str]

ENDPOINT = "rmq://127.0.0.1:1"


def test_defaults() -> None:
    given = backfill.JOB.parse(["store", "out"])
    assert (given.store, given.output, given.source) == ("store", "out", {})
    assert (given.target_file_size, given.row_group_size) == (512 << 20, 64 << 20)
    assert (given.compression, given.schema, given.through_dataframe) == (None, None, None)
    streamed = stream_to_parquet.JOB.parse(["store", "out", "--checkpoint", "c"])
    assert (streamed.trigger, streamed.compression) == ("available-now", "zstd")
    replayed = replay.JOB.parse(["store", ENDPOINT, "--checkpoint", "c"])
    assert (replayed.map, replayed.write, replayed.rate) == ([], [], None)
    assert not replayed.parquet
    copied = copy_topic.JOB.parse(["store", "orders", ENDPOINT])
    assert (copied.store, copied.topic, copied.endpoint) == ("store", "orders", ENDPOINT)
    assert copied.copy is None
    verified = verify_store.JOB.parse(["store"])
    assert (verified.folders, verified.as_json) == (None, False)


def test_values() -> None:
    given = backfill.JOB.parse(["store", "out", "--target-file-size", "1g", "--row-group-size=8k"])
    assert (given.target_file_size, given.row_group_size) == (1 << 30, 8 << 10)
    replayed = replay.JOB.parse(
        ["store", ENDPOINT, "--checkpoint", "c", "--rate", "2.5", "--map", "a=b", "--map", "*=c"]
    )
    assert (replayed.rate, replayed.map) == (2.5, ["a=b", "*=c"])


@pytest.mark.parametrize("without", [BATCH, STREAM])
def test_every_option_of_the_source_can_be_given(without: str) -> None:
    job = Job("x", StoreArguments, "y", without=without)
    stores = ("path", "endpoint", "namesrvAddr")  # STORE says which store is read
    names = [o.name for o in READING.options if o.group != without and o.name not in stores]
    command = [word for name in names for word in (f"--{name}", f"value of {name}")]
    given = job.parse(["/store", *command]).source_options()
    assert given == {"path": "/store", **{name: f"value of {name}" for name in names}}


@pytest.mark.parametrize("endpoint", ["rmq://a:1,rmq://b:2", "rmqs://a:1", "unix:/a"])
def test_a_store_can_be_a_process(endpoint: str) -> None:
    given = Job("x", StoreArguments, "y").parse([endpoint])
    assert given.source_options() == {"endpoint": endpoint}


def test_stores_can_be_found_by_name_servers() -> None:
    given = replay.JOB.parse(["namesrv://a:1;b:2", "namesrv://c:3", "--checkpoint", "c"])
    assert given.source_options() == {"namesrvAddr": "a:1;b:2"}
    assert given.target_options() == {"namesrvAddr": "c:3", "queueSelector": "column"}


def test_options_have_a_second_spelling_and_their_aliases() -> None:
    given = backfill.JOB.parse(
        ["s", "out", "--starting-offsets", "earliest", "--topic", "a", "--check-crc", "0"]
    ).source_options()
    assert given == {"path": "s", "startingOffsets": "earliest", "subscribe": "a", "checkCrc": "0"}


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["--through-dataframe"], "parquet"),
        (["--through-dataframe", "orc"], "orc"),
        (["--through-dataframe=orc"], "orc"),
        (["--through-dataframe", "--compression", "gzip"], "parquet"),
    ],
)
def test_an_option_whose_value_may_be_omitted(words: list[str], kind: str) -> None:
    assert backfill.JOB.parse(["store", "out", *words]).through_dataframe == kind


@pytest.mark.parametrize(
    ("job", "words", "error"),
    [
        (
            backfill.JOB,
            ["store", "out", "--startingOfsets", "earliest"],
            "No such option: --startingOfsets. Did you mean --startingOffsets?",
        ),
        (backfill.JOB, ["store"], "Missing argument 'OUTPUT'."),
        (
            backfill.JOB,
            ["store", "out", "--row-group-size", "much"],
            "Invalid value for '--row-group-size': must be a size such as 64k, 256m or 1g",
        ),
        (
            stream_to_parquet.JOB,
            ["store", "out", "--checkpoint", "c", "--compression", "zip"],
            f"Invalid value for '--compression': must be one of {', '.join(CODECS)}, not 'zip'",
        ),
        (replay.JOB, ["store", ENDPOINT], "Missing option '--checkpoint'."),
        (
            replay.JOB,
            ["store", ENDPOINT, "--checkpoint", "c", "--rate", "0"],
            "Invalid value for '--rate': must be a number of 1 or more, not '0'",
        ),
    ],
)
def test_mistakes_are_reported_in_two_lines(
    job: Job[Any], words: list[str], error: str, capsys: Capture
) -> None:
    with pytest.raises(SystemExit) as raised:
        job.parse(words)
    assert raised.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [f"error: {error}", f"Try '{job.name} --help'."]


def test_a_stream_has_no_options_of_a_batch(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        stream_to_parquet.JOB.parse(["s", "out", "--checkpoint", "c", "--endingOffsets", "latest"])
    assert "No such option: --endingOffsets" in capsys.readouterr().err
