"""A client that commits as somebody else: a stream may fail because of it, and never lose a row.

The client is hostile and plain: Arrow Flight and JSON, and no code of this project's client.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import flight
from pyspark.errors import StreamingQueryException

from tests.datasource.sink.serving import Served
from tests.datasource.sink.test_sink_stream import TOPIC, Start, bodies, run, source, writer
from tests.support.processes.serving import block_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 100
LONG_MAX = (1 << 63) - 1


def arrive(folder: Path, number: int) -> None:
    """Let a micro-batch's file arrive."""
    rows = range(number * ROWS, number * ROWS + ROWS)
    table = pa.table({"body": [f"row-{n}" for n in rows], "keys": [f"key-{n}" for n in rows]})
    folder.mkdir(exist_ok=True)
    pq.write_table(table, folder / f"{number}.parquet")


def commit(store: Served, query: str, number: int, *stages: dict[str, Any]) -> str:
    """Commit as a query; returns the answer's status, or the refusal's text."""
    request = {
        "writer": {"kind": "stream", "name": query, "number": number}, "stages": stages,
    }  # fmt: skip
    with flight.FlightClient(store.endpoint) as client:
        try:
            (answer,) = client.do_action(flight.Action("commit", json.dumps(request).encode()))
        except flight.FlightError as error:
            return str(error)
    status: str = json.loads(answer.body.to_pybytes())["status"]
    return status


def stage(store: Served, *wanted: bytes) -> dict[str, Any]:
    """Stage messages; returns what the store says of the stage."""
    command = json.dumps({"op": "stage", "stageId": uuid4().hex}).encode()
    schema = pa.schema([pa.field("records", pa.binary(), nullable=False)])
    batch = pa.record_batch(
        [pa.array([block_of(list(wanted)).tobytes()], pa.binary())], schema=schema
    )
    with flight.FlightClient(store.endpoint) as client:
        out, answers = client.do_exchange(flight.FlightDescriptor.for_command(command))
        out.begin(schema)
        out.write_with_metadata(batch, (0).to_bytes(8, "little"))
        answers.read_chunk()
        out.write_metadata(b"finish")
        said: dict[str, Any] = json.loads(answers.read_chunk().app_metadata.to_pybytes())
        out.close()
    return said


@pytest.mark.threat("What one client can do to another")
def test_a_commit_without_stages_under_the_id_of_a_query_takes_nothing_from_it(
    spark: SparkSession, served: Served, tmp_path: Path, queries: Start
) -> None:
    files, checkpoint = tmp_path / "arriving", tmp_path / "checkpoint"
    arrive(files, 0)
    query = queries(writer(source(spark, files), served, checkpoint))
    assert query.awaitTermination(120)
    for number in (1, 7, LONG_MAX):
        assert "MESSAGE_ILLEGAL" in commit(served, query.id, number)
    for number in (1, 2):
        arrive(files, number)
    run(queries, writer(source(spark, files), served, checkpoint))
    assert served.bodies(TOPIC, least=3 * ROWS) == bodies(3 * ROWS)
    assert served.commits() == 3


@pytest.mark.threat("What one client can do to another")
@pytest.mark.parametrize("number", [1, LONG_MAX])
def test_a_query_whose_number_somebody_else_has_used_fails_and_does_not_pass_over_its_rows(
    spark: SparkSession, served: Served, tmp_path: Path, queries: Start, number: int
) -> None:
    files, checkpoint = tmp_path / "arriving", tmp_path / "checkpoint"
    arrive(files, 0)
    query = queries(writer(source(spark, files), served, checkpoint))
    assert query.awaitTermination(120)
    assert commit(served, query.id, number, stage(served, b"forged")) == "COMMITTED"
    arrive(files, 1)
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match=f"batch 1 of query {query.id}"):
            run(queries, writer(source(spark, files), served, checkpoint))
    # The rows are still to be written, by a query that has an id of its own.
    fresh = source(spark, files)
    run(queries, writer(fresh, served, tmp_path / "another", topic="again"))
    assert served.bodies("again", least=2 * ROWS) == bodies(2 * ROWS)


def test_a_stage_of_no_rows_commits_nothing(served: Served) -> None:
    command = json.dumps({"op": "stage", "stageId": uuid4().hex}).encode()
    with flight.FlightClient(served.endpoint) as client:
        out, answers = client.do_exchange(flight.FlightDescriptor.for_command(command))
        out.begin(pa.schema([pa.field("records", pa.binary(), nullable=False)]))
        out.write_metadata(b"finish")
        said = json.loads(answers.read_chunk().app_metadata.to_pybytes())
        out.close()
    assert said["rows"] == 0
    assert "MESSAGE_ILLEGAL" in commit(served, "query", 3, said)
    assert served.commits() == 0
