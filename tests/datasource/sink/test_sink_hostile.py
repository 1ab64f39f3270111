"""A client that commits as somebody else: a stream may fail because of it, and never lose a row.

The client is hostile and plain: a socket and JSON, and no code of this project's client.
"""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException

from tests.datasource.sink.serving import Served
from tests.datasource.sink.test_sink_stream import TOPIC, Start, bodies, run, source, writer
from tests.support.processes.serving import block_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 100
LONG_MAX = (1 << 63) - 1
COMMIT, BLOCKS, BLOCK, FINISH = 970_007, 970_030, 970_031, 970_032


def arrive(folder: Path, number: int) -> None:
    """Let a micro-batch's file arrive."""
    rows = range(number * ROWS, number * ROWS + ROWS)
    table = pa.table({"body": [f"row-{n}" for n in rows], "keys": [f"key-{n}" for n in rows]})
    folder.mkdir(exist_ok=True)
    pq.write_table(table, folder / f"{number}.parquet")


class Talk:
    """A conversation with a store process, in frames (rmqstore_spark/wire/protocol.py)."""

    def __init__(self, store: Served) -> None:
        host, _, port = store.endpoint.removeprefix("rmq://").rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 60)
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    def say(self, code: int, body: bytes = b"") -> None:
        header = json.dumps({"code": code, "opaque": 0, "flag": 0, "language": "OTHER"}).encode()
        self._socket.sendall(struct.pack(">II", 4 + len(header) + len(body), len(header)))
        self._socket.sendall(header + body)

    def hear(self) -> tuple[dict[str, Any], bytes]:
        """The header and the body of an answer."""
        length, header = struct.unpack(">II", self._file.read(8))
        said: dict[str, Any] = json.loads(self._file.read(header))
        return said, self._file.read(length - 4 - header)


def commit(store: Served, query: str, number: int, *stages: dict[str, Any]) -> str:
    """Commit as a query; returns the answer's status, or that of the refusal."""
    request = {
        "writer": {"kind": "stream", "name": query, "number": number}, "stages": stages,
    }  # fmt: skip
    with Talk(store) as talk:
        talk.say(COMMIT, json.dumps(request).encode())
        header, body = talk.hear()
    status: str = header["extFields"]["status"] if header["code"] else json.loads(body)["status"]
    return status


def stage(store: Served, *wanted: bytes) -> dict[str, Any]:
    """Stage messages; returns what the store says of the stage."""
    with Talk(store) as talk:
        talk.say(BLOCKS, json.dumps({"op": "stage", "stageId": uuid4().hex}).encode())
        if wanted:
            talk.say(BLOCK, block_of(list(wanted)).tobytes())
            assert b"PUT_OK" in talk.hear()[1]
        talk.say(FINISH)
        said: dict[str, Any] = json.loads(talk.hear()[1])
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
        assert commit(served, query.id, number) == "MESSAGE_ILLEGAL"
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
    said = stage(served)
    assert said["rows"] == 0
    assert commit(served, "query", 3, said) == "MESSAGE_ILLEGAL"
    assert served.commits() == 0
