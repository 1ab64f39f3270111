"""Files by partition: memory, order, and files that a failure leaves open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rmqstore_spark.layout.record.columns import TIMESTAMP
from rmqstore_spark.pipelines.parquet import files as parquet_files
from rmqstore_spark.pipelines.parquet.files import CODECS, FileFormat, PartitionedWriter
from tests.support.stores.storebuilder import Traffic, build_store

ROOT = Path(__file__).resolve().parents[2]
LOCAL = fsspec.filesystem("file")


def batch_of(first: int, rows: int, topics: int) -> pa.RecordBatch:
    numbers = pa.array(range(first, first + rows), pa.int64())
    return pa.RecordBatch.from_pydict(
        {
            "number": numbers,
            "body": pa.array([b"x" * 100] * rows, pa.binary()),
            "topic": pa.array([f"t{n.as_py() % topics}" for n in numbers], pa.string()),
            "storeTimestamp": pa.array([0] * rows, pa.int64()).cast(TIMESTAMP),
        }
    )


def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 50_000
    monkeypatch.setattr(parquet_files, "_BUFFERED", limit)
    columns = ("number", "body")
    with PartitionedWriter(LOCAL, str(tmp_path), "p", columns, FileFormat()) as writer:
        for first in range(0, 4000, 100):
            writer.write(batch_of(first, 100, 16))
            assert writer.waiting_bytes <= limit
    assert len(writer.finished) == 16
    for file in writer.finished:
        found = pq.ParquetFile(tmp_path / file.path).read()
        topic = int(file.path.partition("/")[0].removeprefix("topic=t"))
        assert found["number"].to_pylist() == list(range(topic, 4000, 16))
        assert (found.column_names, found.num_rows) == (["number", "body"], file.rows)
        assert (tmp_path / file.path).stat().st_size == file.size


@pytest.mark.parametrize("codec", CODECS)
def test_codecs(codec: str, tmp_path: Path) -> None:
    file_format = FileFormat(codec)
    with PartitionedWriter(LOCAL, str(tmp_path), "p", ("number",), file_format) as writer:
        writer.write(batch_of(0, 10, 1))
    (file,) = writer.finished
    expected = {"none": "UNCOMPRESSED", "lz4": "LZ4"}.get(codec, codec.upper())
    metadata = pq.read_metadata(tmp_path / file.path)
    assert metadata.row_group(0).column(0).compression == expected
    assert file.path.endswith(".parquet" if codec == "none" else f".{codec}.parquet")


def test_a_failure_leaves_no_file_open(tmp_path: Path) -> None:
    writer = PartitionedWriter(
        LOCAL, str(tmp_path), "p", ("number",), FileFormat(row_group_bytes=1)
    )

    def fail() -> None:
        with writer:
            writer.write(batch_of(0, 10, 3))
            raise KeyError("cause")

    with pytest.raises(KeyError, match="cause"):
        fail()
    assert writer.finished == []
    # They were closed: each has its footer.
    assert [pq.read_metadata(path).num_rows for path in sorted(tmp_path.rglob("*.parquet"))] == [
        4, 3, 3,
    ]  # fmt: skip


def test_a_task_does_not_load_pandas(tmp_path: Path) -> None:
    """Arrow does, if it is installed and what it is given could be of it: 0.2 s of CPU."""
    build_store(tmp_path / "store", Traffic(100))
    script = """
        import sys
        from importlib.abc import MetaPathFinder
        from tests.pipelines.running import run_backfill

        class Asked(MetaPathFinder):
            def find_spec(self, name, path, target=None):
                if name == "pandas":
                    print("pandas")

        sys.meta_path.insert(0, Asked())
        run_backfill(*sys.argv[1:])
    """
    command = [sys.executable, "-c", dedent(script), str(tmp_path / "store"), str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert "100 rows" in done.stdout
    assert "pandas" not in done.stdout
