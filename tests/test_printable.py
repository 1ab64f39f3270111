from __future__ import annotations

import pytest

from rmqstore_spark.base.printable import camel_case


@pytest.mark.parametrize(
    ("field", "name"),
    [("topic", "topic"), ("queue_id", "queueId"), ("file_reserved_time", "fileReservedTime")],
)
def test_fields_are_spelled_as_rocketmq_does(field: str, name: str) -> None:
    assert camel_case(field) == name
