from __future__ import annotations

import pytest

from rmqstore_spark.datasource.options.values import (
    AtOffsets,
    Earliest,
    Latest,
    OfGroup,
    parse_assign,
    parse_offsets,
    parse_times,
)


def test_words() -> None:
    assert parse_offsets(" Earliest") == Earliest()
    assert parse_offsets("LATEST") == Latest()
    assert parse_offsets("group:CID_orders") == OfGroup("CID_orders")


def test_json_of_offsets() -> None:
    position = parse_offsets('{"T":{"0":23,"1":-2},"U":{"0":-1}}')
    assert isinstance(position, AtOffsets)
    assert position.offsets.get("any", "T", 0) == 23
    assert position.offsets.get("any", "T", 1) == -2
    assert position.offsets.get("any", "U", 0) == -1
    assert position.offsets.get("any", "U", 1) is None
    assert position.offsets.get("any", "V", 0) is None


def test_json_with_brokers() -> None:
    position = parse_offsets('{"T":{"broker-a":{"0":5},"broker-b":{"0":6},"0":7}}')
    assert isinstance(position, AtOffsets)
    assert position.offsets.get("broker-a", "T", 0) == 5
    assert position.offsets.get("broker-b", "T", 0) == 6
    assert position.offsets.get("broker-c", "T", 0) == 7


def test_times() -> None:
    times = parse_times('{"T":{"0":1700000000000,"1":"1970-01-01T00:00:01Z"}}').timestamps
    assert times.get("b", "T", 0) == 1_700_000_000_000
    assert times.get("b", "T", 1) == 1000


def test_assign() -> None:
    assert parse_assign('{"T":[1,0,1],"U":[3]}') == {"T": (0, 1), "U": (3,)}


@pytest.mark.parametrize(
    "text",
    [
        "newest",
        "group:",
        "{}",
        '{"T":5}',
        '{"T":{}}',
        '{"T":{"0":-3}}',
        '{"T":{"0":true}}',
        '{"T":{"0":1.5}}',
        '{"T":{"x":1}}',
        '{"T":{"-1":1}}',
        '{"T":{"2147483648":1}}',
        '{"T":{"b":{"0":null}}}',
        f'{{"T":{{"0":{2**63}}}}}',
    ],
)
def test_refused_offsets(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        parse_offsets(text)


@pytest.mark.parametrize(
    "text", ["{}", '{"T":[]}', '{"T":0}', '{"T":[-1]}', '{"T":["0"]}', '{"T":[true]}']
)
def test_refused_assign(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        parse_assign(text)


@pytest.mark.parametrize("text", ['{"T":{"0":-1}}', '{"T":{"0":"soon"}}'])
def test_refused_times(text: str) -> None:
    with pytest.raises(ValueError, match="milliseconds"):
        parse_times(text)
