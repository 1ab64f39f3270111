"""Connections to a store process: kept, used again, never a stale one, and never a parent's."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.client import StoreClient, connection
from rmqstore_spark.client.link import connect
from rmqstore_spark.embedding import EmbeddedStore
from rmqstore_spark.errors import RefusedError, ServiceError
from tests.support.certificates import Certificates, make_certificates
from tests.support.processes.serving import Served, block_of, eventually, served
from tests.support.waiting import PATIENCE


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "store") as found:
        yield found


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The connections that were opened, one entry each."""
    made: list[object] = []

    def noted(*arguments: Any) -> Any:
        made.append(connect(*arguments))
        return made[-1]

    monkeypatch.setattr(connection, "connect", noted)
    return made


def use(client: StoreClient) -> None:
    """Call actions, put blocks, and write a stage."""
    client.topics()
    with client.put_stream() as stream:
        stream.send(block_of([b"a"]))
    with client.stage_stream() as stage:
        stage.send(block_of([b"b"]))
        client.abort([stage.finish().stage_id])
    client.stats()


def test_one_connection_after_another_is_one(here: Served, opened: list[object]) -> None:
    with StoreClient(here.endpoint) as client:
        for _ in range(3):
            use(client)
        assert len(opened) == 1
        assert here.server.connections == 1
    eventually(lambda: here.server.connections == 0)


def test_a_stream_that_is_not_finished_takes_its_connection_along(
    here: Served, opened: list[object]
) -> None:
    with StoreClient(here.endpoint) as client:
        client.put_stream().close()
        client.topics()
        assert len(opened) == 2


def test_a_refused_request_takes_its_connection_along(here: Served, opened: list[object]) -> None:
    with StoreClient(here.endpoint) as client:
        for _ in range(2):
            with pytest.raises(RefusedError):
                client.delete_topic("none")
        client.topics()
    assert len(opened) == 3


def test_threads_share_a_client_and_no_connection(here: Served, opened: list[object]) -> None:
    together = threading.Barrier(12)
    failed: list[BaseException] = []

    def work(client: StoreClient) -> None:
        try:
            with client.put_stream() as stream:
                together.wait(PATIENCE)
                for _ in range(20):
                    stream.put(block_of([b"a"]))
                    client.topics()
        except BaseException as error:  # noqa: BLE001 - the test shows it
            failed.append(error)

    with StoreClient(here.endpoint) as client:
        threads = [threading.Thread(target=work, args=(client,)) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        assert len(opened) >= 12
        eventually(lambda: here.server.connections <= 8)  # more are not kept


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "TLS"])
def test_a_connection_of_a_process_that_was_restarted_is_noticed(
    tmp_path: Path, certificates: Certificates, opened: list[object], encrypted: bool
) -> None:
    """Before it is used: no retry is needed."""
    keys = {
        "tlsServerCertPath": certificates.server_cert,
        "tlsServerKeyPath": certificates.server_key,
    }
    store = EmbeddedStore(tmp_path / "store", settings=keys if encrypted else None)
    store.start()
    options: dict[str, Any] = {"tls_ca": certificates.ca} if encrypted else {}
    with StoreClient(store.endpoint, retries=0, **options) as client:
        client.topics()
        for _ in range(2):
            store.stop()
            store.start()
            with client.put_stream() as stream:
                stream.put(block_of([b"a"]))
            use(client)
    assert len(opened) == 3
    store.stop()


def test_an_encrypted_connection_is_kept_too(
    tmp_path: Path, certificates: Certificates, opened: list[object]
) -> None:
    settings: dict[str, Any] = {
        "tls_server_cert_path": certificates.server_cert,
        "tls_server_key_path": certificates.server_key,
    }
    with (
        served(tmp_path / "store", **settings) as here,
        StoreClient(here.endpoint, tls_ca=certificates.ca) as client,
    ):
        for _ in range(3):
            use(client)
        assert len(opened) == 1


def test_a_connection_that_was_silent_for_long_is_not_used(
    here: Served, opened: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_MOST_IDLE_SECONDS", 0.0)
    with StoreClient(here.endpoint) as client:
        client.topics()  # with the first contact
        before = len(opened)
        client.topics()
    assert len(opened) == before + 1


FORKED = """
import os, sys
from rmqstore_spark.client import StoreClient, connection

opened, connect = [], connection.connect
connection.connect = lambda *arguments: opened.append(1) or connect(*arguments)
client = StoreClient(sys.argv[1], retries=0)
client.topics()
child = os.fork()
if not child:
    assert len(opened) == 1
    client.topics()
    client.topics()
    assert len(opened) == 2, opened
    client.close()
    del client
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
client.topics()
assert len(opened) == 1, opened
child = os.fork()
if not child:
    del client  # without a call
    os._exit(0)
os.waitpid(child, 0)
client.topics()
assert len(opened) == 1, opened
with client.put_stream() as stream:
    child = os.fork()
    if not child:
        stream.close()
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_a_fork_leaves_the_connections_of_its_parent_alone(here: Served) -> None:
    command = [sys.executable, "-W", "error", "-c", FORKED, here.endpoint]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_client_leaves_no_connection(here: Served) -> None:
    client = StoreClient(here.endpoint)
    client.topics()
    eventually(lambda: here.server.connections == 1)  # it counts once the thread of it runs
    client.close()
    eventually(lambda: here.server.connections == 0)
    again = StoreClient(here.endpoint)
    again.topics()
    del again  # as of a store that nobody closes
    eventually(lambda: here.server.connections == 0)


@pytest.mark.parametrize("name", ["rmq://127.0.0.1:1", "unix:/nowhere/s"])
def test_where_nothing_listens(name: str) -> None:
    with StoreClient(name, retries=0) as client:
        ask: Callable[[], object] = client.topics
        with pytest.raises(ServiceError, match="Nothing listens on"):
            ask()
