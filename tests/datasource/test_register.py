from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import rmqstore_spark
from rmqstore_spark.datasource.source import RmqStoreDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_what_the_package_offers() -> None:
    assert rmqstore_spark.RmqStoreDataSource is RmqStoreDataSource
    assert all(hasattr(rmqstore_spark, name) for name in rmqstore_spark.__all__)
    with pytest.raises(AttributeError, match="Store"):
        rmqstore_spark.Store  # noqa: B018 - asking is the test


@pytest.mark.spark_versions
def test_register_before_spark_has_found_the_source_and_after(
    spark: SparkSession, golden: Callable[[str], Path]
) -> None:
    path = str(golden("tiny") / "store")
    for session in (spark.newSession(), spark):
        if session is spark:
            assert session.read.format("rmqstore").load(path).count() > 0
        rmqstore_spark.register(session)
        rmqstore_spark.register(session)
        assert session.read.format("rmqstore").load(path).count() > 0
