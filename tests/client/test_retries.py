"""What is tried again while a store process is restarted, and what fails at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pytest

from rmqstore_spark.client import StoreClient, connection, contact
from rmqstore_spark.datasource.options.connection import ConnectionOptions
from rmqstore_spark.embedding import EmbeddedStore
from rmqstore_spark.errors import RefusedError, ServiceError
from rmqstore_spark.reader import Store
from rmqstore_spark.wire.messages import Done
from rmqstore_spark.wire.protocol import Code
from tests.support.accounts import account_file, guarded
from tests.support.certificates import Certificates, make_certificates
from tests.support.processes.ports import free_port
from tests.support.processes.serving import StoreProcess, block_of, eventually, served

OUTAGE = 6.0
"""Seconds that a process is gone; five retries last about three."""

RETRIES = ConnectionOptions().retries
"""The default of Spark's queries."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    store = EmbeddedStore(tmp_path / "store", port=free_port())
    store.start()
    yield store
    store.stop()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@contextmanager
def restarting(store: EmbeddedStore) -> Iterator[None]:
    """Stop the process, and start it on its port when it was gone for `OUTAGE`."""
    endpoint = store.endpoint
    store.stop()
    back = time.monotonic() + OUTAGE

    def start() -> None:
        eventually(lambda: time.monotonic() >= back)
        store.start()

    starter = threading.Thread(target=start)
    starter.start()
    try:
        yield
    finally:
        starter.join()
    assert store.endpoint == endpoint


def test_the_default_lasts_about_a_minute() -> None:
    sums = [sum(islice(contact.backoff(), RETRIES)) for _ in range(200)]
    assert 55 < sum(sums) / len(sums) < 70


def test_calls_outlive_a_restart(store: EmbeddedStore) -> None:
    with StoreClient(store.endpoint, retries=RETRIES) as client:
        client.create_topic("orders")
        with restarting(store):
            assert client.topics().keys() == {"orders"}


def test_a_reader_outlives_a_restart(store: EmbeddedStore) -> None:
    with StoreClient(store.endpoint) as client, client.put_stream() as stream:
        stream.put(block_of([b"one", b"two"]))
    with (
        Store.open(store.endpoint, storage_options={"retries": RETRIES}) as opened,
        restarting(store),
    ):
        opened.refresh()
        batches = opened.read("orders", 0, 0, 2)
        assert [b for batch in batches for b in batch.column("body").to_pylist()] == [
            b"one",
            b"two",
        ]


def test_blocks_are_sent_again_after_a_restart_if_that_is_wished(store: EmbeddedStore) -> None:
    with (
        StoreClient(store.endpoint, retries=RETRIES) as client,
        client.put_stream(resends=True) as stream,
    ):
        stream.put(block_of([b"before"]))
        with restarting(store):
            for number in range(20):
                stream.send(block_of([b"%d" % number]))
            assert stream.finish() == 21
        client.flush()
    with Store.open(store.path) as opened:
        found = [b for batch in opened.scan() for b in batch.column("body").to_pylist()]
    assert list(dict.fromkeys(found)) == [b"before", *(b"%d" % n for n in range(20))]


def test_blocks_are_not_sent_again_by_themselves(store: EmbeddedStore) -> None:
    with StoreClient(store.endpoint, retries=RETRIES) as client, client.put_stream() as stream:
        stream.put(block_of([b"before"]))
        store.stop()
        with pytest.raises((ServiceError, RefusedError)):
            stream.put(block_of([b"after"]))
        stream.close()


# ---- what retrying cannot help ------------------------------------------------------------------


Attempts = list[object]
"""What was attempted on connections, one entry a try."""


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Attempts:
    made: Attempts = []
    exchange = connection.Connection.exchange

    def noted(self: connection.Connection, *asked: Any) -> Any:
        made.append(asked)
        return exchange(self, *asked)

    monkeypatch.setattr(connection.Connection, "exchange", noted)
    return made


def assert_fails_at_once(
    attempts: Attempts,
    call: Callable[[], object],
    words: str,
    kind: type[Exception] = ServiceError,
) -> None:
    attempts.clear()
    with pytest.raises(kind, match=words):
        call()
    assert len(attempts) == 1


@pytest.mark.threat("Who may connect")
def test_a_wrong_account_fails_at_once(tmp_path: Path, attempts: Attempts) -> None:
    wrong = account_file(tmp_path / "wrong", secret="f" * 32)
    with (
        served(tmp_path / "store", **guarded(tmp_path / "accounts.yml")) as here,
        StoreClient(here.endpoint, acl_file=wrong, retries=RETRIES) as client,
    ):
        assert_fails_at_once(attempts, client.topics, "requires an account, or rejected")


def test_encryption_that_does_not_match_fails_at_once(
    tmp_path: Path, certificates: Certificates, attempts: Attempts
) -> None:
    settings: dict[str, Any] = {
        "tls_server_cert_path": certificates.server_cert,
        "tls_server_key_path": certificates.server_key,
    }
    with (
        served(tmp_path / "a") as plain,
        StoreClient(plain.endpoint.replace("rmq:", "rmqs:"), retries=RETRIES) as client,
    ):
        assert_fails_at_once(attempts, client.topics, "answers without encryption")
    with (
        served(tmp_path / "b", **settings) as encrypted,
        StoreClient(encrypted.endpoint, retries=RETRIES) as client,  # does not know its CA
    ):
        assert_fails_at_once(attempts, client.topics, "tlsCaFile")


def test_what_is_refused_for_good_fails_at_once(tmp_path: Path, attempts: Attempts) -> None:
    with served(tmp_path / "store") as here, StoreClient(here.endpoint, retries=RETRIES) as client:
        client.topics()  # the first contact
        assert_fails_at_once(attempts, lambda: client.delete_topic("none"), "none", RefusedError)
        assert_fails_at_once(
            attempts,
            lambda: client.connection.call(cast("Code", 970_999), Done(), Done),
            "knows no request 970999",
            RefusedError,
        )


def test_a_process_that_does_not_answer_is_not_asked_so_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempts: Attempts
) -> None:
    monkeypatch.setattr(contact, "_FIRST_WAIT", 0.001)
    monkeypatch.setattr(contact, "_LONGEST_WAIT", 0.001)
    with (
        StoreProcess(tmp_path / "store", tmp_path) as process,
        StoreClient(process.endpoint, timeout_s=1, retries=RETRIES) as client,
    ):
        client.stats()
        process.signal(signal.SIGSTOP)
        attempts.clear()
        with pytest.raises(ServiceError, match="within 1 s"):
            client.stats()
        assert len(attempts) == 6


def test_a_process_that_is_slow_to_greet_is_waited_for(tmp_path: Path) -> None:
    """On a busy machine, an answer to a new connection takes a while."""
    with (
        StoreProcess(tmp_path / "store", tmp_path) as process,
        StoreClient(process.endpoint, retries=0) as client,
    ):
        process.signal(signal.SIGSTOP)
        resume = threading.Timer(1.5, process.signal, [signal.SIGCONT])
        resume.start()
        assert client.stats()["state"] == "RUNNING"
        resume.join()
