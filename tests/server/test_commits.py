"""Commits as actions: who may do them, and what a client that is not ours can do with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from rmqstore_spark.base.types import CommitRequest, CommitResult, StageInfo, WriterId
from rmqstore_spark.client import StoreClient
from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.server.actions import StoreActions
from rmqstore_spark.server.callers import Caller
from rmqstore_spark.server.stores.written import WrittenStore
from rmqstore_spark.server.table import BY_CODE
from rmqstore_spark.wire.messages import AbortRequest
from rmqstore_spark.wire.protocol import Code
from tests.support.processes.plainclient import PlainClient
from tests.support.processes.serving import Served, block_of, served
from tests.support.stores.storing import config

LONG_MAX = (1 << 63) - 1


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "store") as found:
        yield found


def committed(endpoint: str, writer: dict[str, Any], stages: list[dict[str, Any]]) -> str:
    """Commit as a client that is not ours; returns the status, or the refusal's text."""
    with PlainClient(endpoint) as client:
        answer = client.ask(Code.COMMIT, {"writer": writer, "stages": stages})
    if answer.status:
        return f"{answer.status}: {answer.remark}"
    status: str = answer.json()["status"]
    return status


def stage(client: StoreClient, *bodies: bytes) -> StageInfo:
    with client.stage_stream() as stream:
        stream.send(block_of(list(bodies)))
        return stream.finish()


@pytest.mark.parametrize("kind", ["stream", "once"])
def test_commits_of_nothing_change_nothing_for_others(here: Served, kind: str) -> None:
    with StoreClient(here.endpoint) as client:
        for number in range(3):
            for attack in (number, LONG_MAX):
                writer = {"kind": kind, "name": "victim", "number": attack}
                assert "MESSAGE_ILLEGAL" in committed(here.endpoint, writer, [])
            own = WriterId(kind, f"victim-{number}" if kind == "once" else "victim", number)  # type: ignore[arg-type]
            info = stage(client, b"row")
            assert client.commit(CommitRequest(own, (info,))).status == "COMMITTED"
            assert client.commit(CommitRequest(own, (info,))).status == "ALREADY_COMMITTED"
    assert here.store.stats()["commits"] == 3


def test_a_batch_write_in_parts_uses_its_number_and_says_so(here: Served) -> None:
    """It takes no more rights than a commit of a row, and the next client is told."""
    writer = {"kind": "batch", "name": "nightly", "number": 4}
    assert committed(here.endpoint, writer, []) == "COMMITTED"
    assert committed(here.endpoint, writer, []) == "ALREADY_COMMITTED"
    with StoreClient(here.endpoint) as client:
        info = stage(client, b"row")
        for number, said in ((4, "no rows, because its tasks"), (3, "4 has been committed")):
            with pytest.raises(RefusedError, match=said):
                client.commit(CommitRequest(WriterId.of_batch("nightly", number), (info,)))
        fresh = CommitRequest(WriterId.of_batch("nightly", 5), (info,))
        assert client.commit(fresh).status == "COMMITTED"


def test_a_commit_that_only_claims_to_hold_something_is_refused(here: Served) -> None:
    """Its stages are not there, so that the number stays free."""
    ghost = {
        "stageId": uuid4().hex, "rows": 1, "bytes": 100, "bodyBytes": 3, "checksum": 7,
        "digest": "0" * 32,
    }  # fmt: skip
    writer = {"kind": "stream", "name": "victim", "number": 0}
    assert "misses the stage" in committed(here.endpoint, writer, [ghost])
    for wrong in ("", "0" * 31, "x" * 32, "-" + "1" * 31):
        refused = committed(here.endpoint, writer, [{**ghost, "digest": wrong}])
        assert "must have 32 hexadecimal digits" in refused
    with StoreClient(here.endpoint) as client:
        request = CommitRequest(WriterId("stream", "victim", 0), (stage(client, b"row"),))
        assert client.commit(request).status == "COMMITTED"


def test_a_number_that_somebody_else_has_used_is_an_error(here: Served) -> None:
    with StoreClient(here.endpoint, retries=0) as client:
        for number in (4, 9):
            request = CommitRequest(WriterId("stream", "victim", number), (stage(client, b"f"),))
            assert client.commit(request).status == "COMMITTED"
        here.store.flush()
        info = stage(client, b"one", b"two")
        for number, words in (
            (4, "different content"),
            (9, "different content"),
            (5, "9 has been"),
        ):
            with pytest.raises(RefusedError, match=words) as seen:
                client.commit(CommitRequest(WriterId("stream", "victim", number), (info,)))
            assert seen.value.status == "MESSAGE_ILLEGAL"
        assert client.commit(CommitRequest(WriterId("stream", "own", 0), (info,))).rows == 2


def client_of(certificate: str) -> Caller:
    caller = Caller(None, "127.0.0.1")
    caller.certificate = certificate
    return caller


def test_an_action_is_done_as_the_client_that_asked(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "store", config()) as store:
        actions = StoreActions(WrittenStore(store), lambda: None, lambda: False)
        own = store.batches.begin_stage(uuid4().hex, identity="spark-a")
        own.append(block_of([b"row"]))
        info = own.finish()
        requests: dict[Code, object] = {
            Code.COMMIT: CommitRequest(WriterId("stream", "q", 0), (info,)),
            Code.ABORT: AbortRequest((info.stage_id,)),
        }

        def done(code: Code, certificate: str) -> object:
            handle = BY_CODE[code].handle
            assert handle is not None
            return handle(actions, requests[code], client_of(certificate))

        for code in requests:
            with pytest.raises(RefusedError, match="belongs to the client 'spark-a'") as seen:
                done(code, "spark-b")
            assert seen.value.status == "NO_PERMISSION"
        committed = done(Code.COMMIT, "spark-a")
        assert isinstance(committed, CommitResult)
        assert committed.status == "COMMITTED"
        with pytest.raises(RefusedError, match="belongs to the client 'spark-a'"):
            done(Code.COMMIT, "spark-b")
