from __future__ import annotations

import logging

import pytest

from rmqstore_spark.datasource.options.parsing import Options, check_options, parse_options
from rmqstore_spark.datasource.options.positions import (
    AtOffsets,
    AtTime,
    AtTimes,
    Earliest,
    Latest,
)
from rmqstore_spark.datasource.options.table import OPTIONS
from rmqstore_spark.errors import OptionError


def parse(*, streaming: bool = False, **given: str) -> Options:
    # Spark hands option names over in lower case.
    return parse_options({"path": "/s"} | {k.lower(): v for k, v in given.items()}, streaming)


def test_defaults() -> None:
    batch, stream = parse(), parse(streaming=True)
    assert (batch.starting, batch.ending) == (Earliest(), Latest())
    assert stream.starting == Latest()
    assert batch.paths == ("/s",)
    assert batch.fail_on_data_loss
    assert batch.max_bytes_per_partition == 256 << 20
    assert batch.tags is None
    assert batch.plan_by == "auto"
    assert batch.decompress
    assert batch.check_crc
    assert batch.mode == "FAILFAST"
    assert not batch.include_system
    assert not batch.no_match_is_latest
    assert stream.max_delay_ms == 900_000
    assert (batch.topics, batch.pattern, batch.assign) == (None, None, None)


def test_every_option_is_read() -> None:
    options = parse(
        brokerNames="a,b",
        storePathCommitLog='{"a":["/x","/y"],"b":"/z"}',
        topic="T,U",
        includeSystemTopics="true",
        startingOffsets="earliest",
        endingOffsets='{"T":{"0":5}}',
        startingOffsetsByTimestampStrategy="LATEST",
        failOnDataLoss="false",
        minPartitions="3",
        maxRecordsPerPartition="10",
        maxBytesPerPartition="1m",
        tags="TagA || TagB",
        keys="k1 k2",
        decompress="false",
        checkCrc="false",
        mode="dropMalformed",
    )
    assert options.broker_names == ("a", "b")
    assert options.commitlog_paths == {"a": ("/x", "/y"), "b": ("/z",)}
    assert options.topics == ("T", "U")
    assert options.include_system
    assert isinstance(options.ending, AtOffsets)
    assert options.no_match_is_latest
    assert not options.fail_on_data_loss
    assert options.min_partitions == 3
    assert options.max_records_per_partition == 10
    assert options.max_bytes_per_partition == 1 << 20
    assert options.tags == frozenset({"TagA", "TagB"})
    assert options.keys == frozenset({"k1", "k2"})
    assert not options.decompress
    assert not options.check_crc
    assert options.mode == "DROPMALFORMED"

    stream = parse(
        streaming=True,
        subscribePattern="T.*",
        maxOffsetsPerTrigger="5",
        minOffsetsPerTrigger="5",
        maxTriggerDelay="2s",
        maxBytesPerTrigger="1k",
    )
    assert stream.pattern is not None
    assert stream.pattern.fullmatch("Topic")
    assert (stream.max_rows, stream.min_rows) == (5, 5)
    assert stream.max_delay_ms == 2000
    assert stream.max_bytes == 1024
    assert parse(assign='{"T":[0]}').assign == {"T": (0,)}
    assert parse(planBy="CommitLog").plan_by == "commitlog"
    assert parse(keys='["a b"]').keys == frozenset({"a b"})
    assert parse(tags="*").tags is None
    assert parse(storePathCommitLog="/x,/y").commitlog_paths == ("/x", "/y")
    assert parse_options({"paths": '["/a","/b,c"]'}, False).paths == ("/a", "/b,c")


def test_precedence_of_starting_and_ending_options_is_kafkas() -> None:
    times, offsets = '{"T":{"0":7}}', '{"T":{"0":8}}'
    everything = parse(
        startingTimestamp="6",
        startingOffsetsByTimestamp=times,
        startingOffsets=offsets,
        endingTimestamp="9",
        endingOffsetsByTimestamp=times,
        endingOffsets=offsets,
    )
    assert everything.starting == AtTime(6)
    assert everything.ending == AtTime(9)
    by_queue = parse(startingOffsetsByTimestamp=times, startingOffsets=offsets)
    assert isinstance(by_queue.starting, AtTimes)
    assert by_queue.starting_option == "startingOffsetsByTimestamp"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("startingOffset", "startingOffsets"),
        ("subscibe", "subscribe"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("checkcrcs", "checkCrc"),
        ("failondatalos", "failOnDataLoss"),
        ("plan", "planBy"),
    ],
)
def test_an_unknown_option_names_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(OptionError, match=rf"Unknown option '{name}'. Did you mean {nearest}\?"):
        check_options({name: "x"})


def test_an_option_like_no_other_lists_all() -> None:
    with pytest.raises(OptionError) as caught:
        check_options({"zzz": "1"})
    assert all(option.name in str(caught.value) for option in OPTIONS)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"subscribe": "T", "assign": '{"T":[0]}'}, "subscribe and assign contradict"),
        ({"subscribe": "T", "subscribePattern": "T"}, "subscribe and subscribePattern contradict"),
        ({"subscribe": "T", "topic": "T"}, "subscribe and topic are the same option"),
        ({"brokerNames": "a,a"}, "'a' twice"),
        ({"startingOffsets": "latest"}, "cannot start at latest"),
        ({"startingOffsets": '{"T":{"0":-1}}'}, "cannot start at latest"),
        ({"endingOffsets": "earliest"}, "cannot end at earliest"),
        ({"endingOffsets": '{"T":{"0":-2}}'}, "cannot end at earliest"),
        ({"startingTimestamp": "8", "endingTimestamp": "7"}, r"startingTimestamp \(8\) is above"),
        ({"keys": "k", "planBy": "commitlog"}, "keys and planBy contradict"),
        (
            {"maxRecordsPerPartition": "9", "planBy": "commitlog"},
            "maxRecordsPerPartition and planBy=commitlog contradict",
        ),
        ({"mode": "PERMISSIVE"}, "must be FAILFAST or DROPMALFORMED, not 'PERMISSIVE'"),
        ({"subscribePattern": "("}, "must be a valid regular expression"),
        ({"minPartitions": "0"}, "must be at least 1"),
        ({"maxBytesPerPartition": "0"}, "must be at least 1"),
        ({"keys": " "}, "contains no key"),
        ({"startingTimestamp": "1700000000"}, "looks like seconds: use 1700000000000"),
        ({"endingTimestamp": "1700000000"}, "looks like seconds: use 1700000000000"),
        ({"endingTimestamp": "1700000000000000"}, "looks like microseconds"),
        ({"endingTimestamp": "1700000000000000000"}, "looks like microseconds or nanoseconds"),
        ({"startingOffsetsByTimestamp": '{"T":{"0":1700000000}}'}, "looks like seconds"),
        ({"decompress": "1"}, "Option decompress must be true or false, not '1'"),
    ],
)
def test_wrong_and_contradictory_options(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        parse_options({"path": "/s", **given}, streaming=False)


@pytest.mark.parametrize(
    "text",
    [
        *("A || ", "|| A", "A || *", "A*", "A && B", "A&B", "A|B", "A,B", "A;B", "A B", "A or B"),
        *("A AND B", "!A", "(A)", "a > 5", "a=5", "a<>5", "'A'", "A ||| B", "TAGS IN ('A')"),
    ],
)
def test_a_tag_expression_has_no_operator_but_one(text: str) -> None:
    with pytest.raises(OptionError, match=r"Option tags must be .* separated by \|\|, the only"):
        parse(tags=text)


def test_tags_as_rocketmq_reads_them() -> None:
    assert parse(tags="A||B").tags == frozenset({"A", "B"})
    assert parse(tags=" a-b_c.d/e:1%+@#$ ").tags == frozenset({"a-b_c.d/e:1%+@#$"})
    assert parse(tags="标签 || ü").tags == frozenset({"标签", "ü"})
    assert parse(tags="").tags is None
    assert parse(tags=" * ").tags is None
    assert parse(tags='["A && B", "*", "a,b"]').tags == frozenset({"A && B", "*", "a,b"})


@pytest.mark.parametrize("text", ["[]", '[""]', "[1]", '["A"'])
def test_refused_lists_of_tags(text: str) -> None:
    with pytest.raises(OptionError, match="must"):
        parse(tags=text)


@pytest.mark.parametrize(
    "text", ["a,b", "a, b", "a || b", "a && b", "a AND b", "a or b", "a;b", "*"]
)
def test_keys_know_no_operators(text: str) -> None:
    with pytest.raises(OptionError, match="must be keys separated by spaces"):
        parse(keys=text)


def test_keys_to_the_letter() -> None:
    assert parse(keys="a=1 b|c ORDER-7").keys == frozenset({"a=1", "b|c", "ORDER-7"})
    assert parse(keys='["a,b", "OR"]').keys == frozenset({"a,b", "OR"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("endingOffsets", "latest"),
        ("endingTimestamp", "5"),
        ("endingOffsetsByTimestamp", '{"T":{"0":7}}'),
        ("keys", "k"),
    ],
)
def test_a_stream_refuses_what_only_a_batch_can_do(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=f"Option {name} is for batch queries"):
        parse_options({"path": "/s", name: value}, streaming=True)


def test_a_stream_refuses_limits_that_contradict_each_other() -> None:
    with pytest.raises(OptionError, match=r"minOffsetsPerTrigger \(6\) is above max"):
        parse(streaming=True, minOffsetsPerTrigger="6", maxOffsetsPerTrigger="5")


def test_a_batch_ignores_a_streams_limits_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rmqstore_spark"):
        parse(maxOffsetsPerTrigger="5")
    assert "maxOffsetsPerTrigger is for streams" in caplog.text


def test_a_missing_path_is_told() -> None:
    with pytest.raises(OptionError, match="path is missing"):
        parse_options({}, streaming=False)


def test_replicas_of_a_store() -> None:
    endpoint = "rmq://A:1 | unix:/s,rmq://b:1#x|y"  # a store's name may contain |
    given = parse_options({"endpoint": endpoint}, streaming=True)
    assert given.connection is not None
    assert given.connection.endpoints == ("rmq://A:1|unix:/s", "rmq://b:1#x|y")
    assert given.replica_timeout_ms == 10_000
    with pytest.raises(OptionError, match="given twice"):
        parse_options({"endpoint": "rmq://a:1|rmq://b:1|rmq://a:1"}, streaming=True)
