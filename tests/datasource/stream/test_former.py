"""Stores and checkpoints of an earlier version (7b5d3efd) open, and their queries continue.

`former.tar.zst` holds what one query of it left: `from`, a store with 60 messages of topic Source;
`to`, the store that it wrote to, exactly once, in three batches; and its `checkpoint`.
"""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from tests.datasource.sink.serving import Served
from tests.support.processes.serving import block_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILES = {"mappedFileSizeCommitLog": 65536, "mappedFileSizeConsumeQueue": 20 * 1000}
_INDEX = {"maxHashSlotNum": 500, "maxIndexNum": 1000}


@pytest.mark.parametrize("was_noted", [True, False], ids=["committed", "answer-lost"])
def test_a_query_of_an_earlier_version_continues(
    spark: SparkSession, tmp_path: Path, queries: Callable[..., Any], was_noted: bool
) -> None:
    archive = (Path(__file__).parent / "former.tar.zst").read_bytes()
    with tarfile.open(
        fileobj=io.BytesIO(zstandard.ZstdDecompressor().decompress(archive, 1 << 22))
    ) as tar:
        tar.extractall(tmp_path, filter="data")
    if not was_noted:  # the query ended before Spark noted that its last batch is committed
        (tmp_path / "checkpoint/commits/2").unlink()
        (tmp_path / "checkpoint/commits/.2.crc").unlink()
    source, target = (Served(tmp_path / name, **_FILES, **_INDEX) for name in ("from", "to"))
    try:
        with source.client() as client, client.put_stream() as stream:
            stream.send(block_of([b"row-%d" % number for number in range(60, 90)], topic="Source"))
        assert len(source.rows("Source", least=90)) == 90
        query = queries(
            spark.readStream.format("rmqstore")
            .options(topic="Source", startingOffsets="earliest")
            .load(str(tmp_path / "from"))
            .selectExpr("'Sink' as topic", "body", "keys")
            .writeStream.format("rmqstore")
            .options(endpoint=target.endpoint, checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        query.awaitTermination()
        found = Counter(row["body"] for row in target.rows("Sink", least=90))
    finally:
        source.process.stop()
        target.process.stop()
    assert found == Counter(b"row-%d" % number for number in range(90))
