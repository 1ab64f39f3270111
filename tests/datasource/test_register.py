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


def test_register(spark: SparkSession, golden: Callable[[str], Path]) -> None:
    session = spark.newSession()
    rmqstore_spark.register(session)
    path = str(golden("tiny") / "store")
    assert session.read.format("rmqstore").load(path).count() > 0
