from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmqstore_spark.datasource.options import values


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (values.parse_boolean, "true", True),
        (values.parse_boolean, " FALSE ", False),
        (values.parse_integer, "-7", -7),
        (values.parse_integer, str(2**63 - 1), 2**63 - 1),
        (values.parse_bytes, "17", 17),
        (values.parse_bytes, "64k", 65_536),
        (values.parse_bytes, "256m", 256 << 20),
        (values.parse_bytes, "1 GB", 1 << 30),
        (values.parse_bytes, "2TiB", 2 << 40),
        (values.parse_duration_ms, "250", 250),
        (values.parse_duration_ms, "500ms", 500),
        (values.parse_duration_ms, "15m", 900_000),
        (values.parse_duration_ms, "1 h", 3_600_000),
        (values.parse_timestamp_ms, "1700000000123", 1_700_000_000_123),
        (values.parse_timestamp_ms, "1970-01-01T00:00:01Z", 1000),
        (values.parse_timestamp_ms, "1970-01-01T00:00:01.5z", 1500),
        (values.parse_timestamp_ms, "1970-01-01 00:00:01.123456789+00:00", 1123),
        (values.parse_timestamp_ms, "1970-01-02", 86_400_000),
        (values.parse_timestamp_ms, "0", 0),
        (values.parse_timestamp_ms, "5000-01-01", 95_617_584_000_000),
        (values.parse_timestamp_ms, "1970-01-01T01:00:00+01:00", 0),
        (values.parse_timestamp_ms, "1970-01-01T00:00:02", 2000),
        (values.parse_names, " a, b ", ("a", "b")),
        (values.parse_names, '["a,b", "c"]', ("a,b", "c")),
        (values.parse_paths, "/a,/b c", ("/a", "/b c")),
        (values.parse_paths, "file:/a", ("file:///a",)),
        (values.parse_paths, "file:///a", ("file:///a",)),
        (values.parse_paths, "zip://store::file:/a.zip", ("zip://store::file:///a.zip",)),
        (values.parse_paths, "C:/stores", ("C:/stores",)),
    ],
)
def test_reads(parse: Callable[[str], Any], text: str, value: object) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (values.parse_boolean, "yes"),
        (values.parse_boolean, ""),
        (values.parse_integer, "1.5"),
        (values.parse_integer, str(2**63)),
        (values.parse_integer, "٣"),
        (values.parse_bytes, "-1"),
        (values.parse_bytes, "12 parsecs"),
        (values.parse_bytes, "9" * 30),
        (values.parse_duration_ms, "15 parsecs"),
        (values.parse_duration_ms, "-1s"),
        (values.parse_timestamp_ms, "yesterday"),
        (values.parse_timestamp_ms, "-5"),
        (values.parse_json_object, "[1]"),
        (values.parse_json_object, "{"),
        (values.parse_json_object, '{"a":1,"a":2}'),
        (values.parse_json_object, '{"a":' + "[" * 100_000),
        (values.parse_names, ""),
        (values.parse_names, "a,,b"),
        (values.parse_names, "[]"),
        (values.parse_names, "[1]"),
        (values.parse_names, '["a"'),
        (values.parse_timestamp_ms, "1700000000"),
        (values.parse_timestamp_ms, "1700000000000000"),
        (values.timestamp_ms, 1_700_000_000),
        (values.timestamp_ms, True),
        (values.timestamp_ms, -1),
        (values.timestamp_ms, 1.5),
    ],
)
def test_refuses(parse: Callable[[Any], Any], text: object) -> None:
    with pytest.raises(ValueError, match="must"):
        parse(text)
