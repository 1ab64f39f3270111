"""A damaged store, and the Spark session of the suite, started as a job does."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmqstore_spark.pipelines.running import start_session
from tests.datasource.sink.conftest import serve
from tests.support.stores.golden import load_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["serve"]


@pytest.fixture
def session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    monkeypatch.setenv("SPARK_CONF_DIR", "")  # restores what the job sets
    return start_session("tests")


@pytest.fixture
def damaged(golden: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of `basic` with a changed byte in one body."""
    shutil.copytree(golden("basic") / "store", tmp_path / "store")
    victim = next(r for r in load_records(golden("basic")) if len(r.body) > 100)
    (file, *_) = sorted((tmp_path / "store" / "commitlog").iterdir())
    data = bytearray(file.read_bytes())
    data[data.index(victim.body) + 50] ^= 1
    file.write_bytes(data)
    return tmp_path / "store"
