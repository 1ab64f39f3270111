from __future__ import annotations

import logging

import pytest

from rmqstore_spark.datasource.options.parsing import Options, check_options, parse_options
from rmqstore_spark.datasource.options.table import OWN
from rmqstore_spark.datasource.options.values import (
    AtOffsets,
    AtTime,
    AtTimes,
    Earliest,
    Latest,
)
from rmqstore_spark.errors import OptionError


def parse(*, streaming: bool = False, **given: str) -> Options:
    # Spark hands option names over in lower case.
    return parse_options({"path": "/s"} | {k.lower(): v for k, v in given.items()}, streaming)


def test_defaults() -> None:
    batch, stream = parse(), parse(streaming=True)
    assert (batch.positions.starting, batch.positions.ending) == (Earliest(), Latest())
    assert stream.positions.starting == Latest()
    assert batch.places.paths == ("/s",)
    assert batch.positions.fail_on_data_loss
    assert batch.partitions.max_bytes == 256 << 20
    assert batch.rows.tags is None
    assert batch.partitions.plan_by == "auto"
    assert batch.rows.decompress
    assert batch.rows.check_crc
    assert batch.rows.mode == "FAILFAST"
    assert not batch.queues.include_system
    assert not batch.positions.no_match_is_latest
    assert stream.trigger.max_delay_ms == 900_000
    assert (batch.queues.topics, batch.queues.pattern, batch.queues.assign) == (None, None, None)


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
    assert options.places.broker_names == ("a", "b")
    assert options.places.commitlog_paths == {"a": ("/x", "/y"), "b": ("/z",)}
    assert options.queues.topics == ("T", "U")
    assert options.queues.include_system
    assert isinstance(options.positions.ending, AtOffsets)
    assert options.positions.no_match_is_latest
    assert not options.positions.fail_on_data_loss
    assert options.partitions.min_partitions == 3
    assert options.partitions.max_records == 10
    assert options.partitions.max_bytes == 1 << 20
    assert options.rows.tags == frozenset({"TagA", "TagB"})
    assert options.rows.keys == frozenset({"k1", "k2"})
    assert not options.rows.decompress
    assert not options.rows.check_crc
    assert options.rows.mode == "DROPMALFORMED"

    stream = parse(
        streaming=True,
        subscribePattern="T.*",
        maxOffsetsPerTrigger="5",
        minOffsetsPerTrigger="5",
        maxTriggerDelay="2s",
        maxBytesPerTrigger="1k",
    )
    assert stream.queues.pattern is not None
    assert stream.queues.pattern.fullmatch("Topic")
    assert (stream.trigger.max_rows, stream.trigger.min_rows) == (5, 5)
    assert stream.trigger.max_delay_ms == 2000
    assert stream.trigger.max_bytes == 1024
    assert parse(assign='{"T":[0]}').queues.assign == {"T": (0,)}
    assert parse(planBy="CommitLog").partitions.plan_by == "commitlog"
    assert parse(keys='["a b"]').rows.keys == frozenset({"a b"})
    assert parse(tags="*").rows.tags is None
    assert parse(storePathCommitLog="/x,/y").places.commitlog_paths == ("/x", "/y")
    assert parse_options({"paths": '["/a","/b,c"]'}, False).places.paths == ("/a", "/b,c")


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
    assert everything.positions.starting == AtTime(6)
    assert everything.positions.ending == AtTime(9)
    by_queue = parse(startingOffsetsByTimestamp=times, startingOffsets=offsets)
    assert isinstance(by_queue.positions.starting, AtTimes)
    assert by_queue.positions.starting_option == "startingOffsetsByTimestamp"


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
    assert all(option.name in str(caught.value) for option in OWN.options)


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
        ({"keys": " "}, "Option keys must name at least one key, not ' '"),
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
    assert parse(tags="A||B").rows.tags == frozenset({"A", "B"})
    assert parse(tags=" a-b_c.d/e:1%+@#$ ").rows.tags == frozenset({"a-b_c.d/e:1%+@#$"})
    assert parse(tags="标签 || ü").rows.tags == frozenset({"标签", "ü"})
    assert parse(tags="").rows.tags is None
    assert parse(tags=" * ").rows.tags is None
    assert parse(tags='["A && B", "*", "a,b"]').rows.tags == frozenset({"A && B", "*", "a,b"})


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
    assert parse(keys="a=1 b|c ORDER-7").rows.keys == frozenset({"a=1", "b|c", "ORDER-7"})
    assert parse(keys='["a,b", "OR"]').rows.keys == frozenset({"a,b", "OR"})


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
    assert given.places.connection is not None
    assert given.places.connection.endpoints == ("rmq://A:1|unix:/s", "rmq://b:1#x|y")
    assert given.places.replica_timeout_ms == 10_000
    with pytest.raises(OptionError, match="given twice"):
        parse_options({"endpoint": "rmq://a:1|rmq://b:1|rmq://a:1"}, streaming=True)
