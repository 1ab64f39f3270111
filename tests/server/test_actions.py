"""Reads that last long are broken off, between two of their steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.server.actions import StoreActions
from rmqstore_spark.server.callers import Caller
from rmqstore_spark.server.stores.written import WrittenStore
from rmqstore_spark.server.table import BY_CODE
from rmqstore_spark.wire.codec import encode
from rmqstore_spark.wire.messages import QueryRequest
from rmqstore_spark.wire.protocol import Code
from rmqstore_spark.wire.reading import WalkRequest
from tests.support.stores.storing import config, messages

READS = [
    (Code.QUERY, encode(QueryRequest("T", "k", 10))),
    (Code.WALK, encode(WalkRequest("consumequeue"))),
    (Code.WALK, encode(WalkRequest("", 3))),
]


@pytest.fixture(params=[True, False], ids=["indexed", "walked"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreWriter]:
    with StoreWriter.open(tmp_path / "s", config(messageIndexEnable=request.param)) as opened:
        assert opened.put_batch(messages([b"x"] * 3, properties=[b"KEYS\x01k"] * 3)).ok
        opened.flush()
        yield opened


def done(store: StoreWriter, code: Code, body: bytes, *, is_stopping: bool) -> object:
    actions = StoreActions(WrittenStore(store), lambda: None, lambda: is_stopping)
    row = BY_CODE[code]
    assert row.handle is not None
    return row.handle(actions, row.read(body), Caller(None, ""))


@pytest.mark.parametrize(("code", "body"), READS)
def test_a_read_ends_when_the_process_does(store: StoreWriter, code: Code, body: bytes) -> None:
    assert done(store, code, body, is_stopping=False)
    with pytest.raises(RefusedError, match=r"is stopping.*SERVICE_NOT_AVAILABLE"):
        done(store, code, body, is_stopping=True)


@pytest.mark.parametrize(("code", "body"), READS)
def test_a_read_may_not_last_for_ever(
    store: StoreWriter, monkeypatch: pytest.MonkeyPatch, code: Code, body: bytes
) -> None:
    monkeypatch.setattr("rmqstore_spark.server.actions._LONGEST_READ_SECONDS", 0.0)
    with pytest.raises(RefusedError, match="took more than 0 s"):
        done(store, code, body, is_stopping=False)
