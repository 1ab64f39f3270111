from __future__ import annotations

import pickle

import pytest

from rmqstore_spark.datasource.options.option import BATCH
from rmqstore_spark.datasource.options.parsing import (
    SinkOptions,
    check_options,
    parse_options,
    parse_sink_options,
)
from rmqstore_spark.datasource.options.sink_table import WRITING, BatchVersion
from rmqstore_spark.errors import OptionError

ENDPOINT = "rmq://127.0.0.1:10921"


def parse(*, streaming: bool = False, **given: str) -> SinkOptions:
    # Spark hands option names over in lower case.
    named = {"endpoint": ENDPOINT} | {k.lower(): v for k, v in given.items()}
    return parse_sink_options(named, streaming)


def test_defaults() -> None:
    for streaming in (False, True):
        options = parse(streaming=streaming)
        assert options.target.connection.endpoints == (ENDPOINT,)
        assert options.delivery.exactly_once
        assert options.delivery.atomic
        assert not options.messages.preserve
        assert options.messages.queue_selector == "hash"
        assert options.delivery.max_in_flight == 16 << 20
        assert options.delivery.max_write == 1 << 30
        assert options.delivery.batch_version is None
        assert options.messages.topic is None
        assert options.target.connection.timeout_ms == 60_000
        assert options.target.connection.retries == 17


def test_every_option_is_read() -> None:
    options = parse(
        endpoint="rmqs://a:1, unix:/run/s.sock",
        topic="orders",
        aclFile="/t",
        tlsCaFile="/ca",
        tlsCertFile="/cert",
        tlsKeyFile="/key",
        deliveryGuarantee="Exactly-Once",
        queueSelector="roundRobin",
        preserve="true",
        maxInFlightBytes="1m",
        maxTransactionBytes="10g",
        atomic="false",
        txnAppId="nightly",
        txnVersion="17",
        requestTimeout="5s",
        retries="0",
    )
    assert options.target.connection.endpoints == ("rmqs://a:1", "unix:/run/s.sock")
    connection = options.target.connection
    assert (connection.acl_file, connection.tls_ca) == ("/t", "/ca")
    assert (connection.tls_cert, connection.tls_key) == ("/cert", "/key")
    assert (connection.timeout_ms, connection.retries) == (5000, 0)
    assert options.messages.topic == "orders"
    assert options.messages.queue_selector == "roundrobin"
    assert options.messages.preserve
    assert (options.delivery.max_in_flight, options.delivery.max_write) == (1 << 20, 10 << 30)
    assert not options.delivery.atomic
    assert options.delivery.batch_version == BatchVersion("nightly", 17)
    assert not parse(deliveryGuarantee="at-least-once").delivery.exactly_once
    assert pickle.loads(pickle.dumps(options)) == options


def test_what_spark_hands_over_besides() -> None:
    given = {"endpoint": ENDPOINT, "checkpointLocation": "/c", "queryName": "q"}
    check_options(given)
    assert parse_sink_options(given, streaming=True) == parse(streaming=True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"endpoint": "localhost:1"}, "Option endpoint: 'localhost:1' is not an endpoint"),
        ({"endpoint": f"{ENDPOINT},{ENDPOINT}"}, "given twice"),
        ({"endpoints": ENDPOINT}, "Did you mean endpoint?"),
        ({"topic": "a/b"}, "Option topic: 'a/b' is not a topic name"),
        ({"topic": ""}, "Option topic: '' is not a topic name"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "Option topic: .* is a system topic"),
        ({"deliveryGuarantee": "once"}, "must be exactly-once or at-least-once"),
        ({"queueSelector": "random"}, "must be hash or roundrobin or column"),
        ({"maxInFlightBytes": "0"}, "must be at least 1"),
        ({"atomic": "no"}, "Option atomic must be true or false"),
        ({"txnAppId": "a"}, "txnAppId and txnVersion must be set together"),
        ({"txnVersion": "1"}, "txnAppId and txnVersion must be set together"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "must be at least 0"),
        ({"txnAppId": "a" * 201, "txnVersion": "1"}, "must be 1 to 200 printable"),
        ({"txnAppId": "a\n", "txnVersion": "x"}, "must be a whole number"),
        ({"tlsKeyFile": "/k"}, "tlsCertFile and tlsKeyFile must be set together"),
        ({"aclFile": " "}, "must not be empty"),
        ({"path": "/data/store"}, "set option\\('endpoint', ...\\) instead of a path"),
        ({"startingOffsets": "earliest"}, "startingOffsets is for reading"),
        (
            {"txnAppId": "a", "txnVersion": "1", "deliveryGuarantee": "at-least-once"},
            "contradict each other",
        ),
    ],
)
def test_wrong_and_contradictory_options(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        parse_sink_options({"endpoint": ENDPOINT, **given}, streaming=False)


def test_a_missing_endpoint_is_told() -> None:
    with pytest.raises(OptionError, match=r"endpoint is missing.*rmqstore serve"):
        parse_sink_options({}, streaming=False)


@pytest.mark.parametrize("name", [o.name for o in WRITING.options if o.group == BATCH])
def test_a_stream_refuses_what_only_a_batch_can_do(name: str) -> None:
    value = {"atomic": "false", "txnAppId": "a", "txnVersion": "1"}[name]
    with pytest.raises(OptionError, match=f"Option {name} is for batch writes"):
        parse_sink_options({"endpoint": ENDPOINT, name: value}, streaming=True)


def test_reading_refuses_options_of_writing() -> None:
    with pytest.raises(OptionError, match="txnAppId is for writing"):
        parse_options({"path": "/s", "txnAppId": "a"}, streaming=False)


def test_what_load_and_save_check_before_the_direction_is_known() -> None:
    check_options({"topic": "a,b", "endpoint": ENDPOINT, "atomic": "false", "subscribe": "t"})
    with pytest.raises(OptionError, match="Did you mean queueSelector"):
        check_options({"queueSelecter": "hash"})
    with pytest.raises(OptionError, match="atomic must be true or false"):
        check_options({"atomic": "maybe"})


def test_replicas_of_a_store_are_one_target() -> None:
    named = {"endpoint": "rmq://a:1|rmq://b:1,rmq://c:1", "topic": "t"}
    options = parse_sink_options(named, streaming=False)
    assert options.target.connection.endpoints == ("rmq://a:1|rmq://b:1", "rmq://c:1")
