"""The first contact with what does not answer, in all forms: it is given up, and told of before."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.client import StoreClient, contact
from rmqstore_spark.client.brokers.broker import BrokerClient
from rmqstore_spark.client.brokers.routes import NameServers
from rmqstore_spark.client.brokers.server_group import Addresses
from rmqstore_spark.embedding import EmbeddedStore
from rmqstore_spark.errors import ServiceError
from rmqstore_spark.remoting.access.identity import ClientIdentity
from tests.support.certificates import Certificates, make_certificates
from tests.support.processes.ports import free_port
from tests.support.processes.serving import eventually

LONG = 600.0
"""Seconds: far more than a test may take. What is given up earlier was a first contact."""
SHORT = 0.5


@contextmanager
def listening(answer: bytes | None) -> Iterator[str]:
    """A port that answers each connection with some bytes, or never (None)."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connected, _ = server.accept()
                    held.append(connected)
                    if answer is not None:
                        with suppress(OSError), connected:
                            connected.recv(1 << 16)
                            connected.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connected in held:
            connected.close()


@contextmanager
def deaf() -> Iterator[str]:
    """A port whose connections are never completed, as behind a firewall that drops packets."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        waiting = []
        for _ in range(4):  # more than its queue holds
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(server.getsockname())
            waiting.append(one)
        yield f"127.0.0.1:{server.getsockname()[1]}"
        for one in waiting:
            one.close()


@contextmanager
def place(form: str) -> Iterator[str]:
    if form == "refused":
        yield f"127.0.0.1:{free_port()}"
    elif form == "unknown":
        yield "no-such-host.invalid:10921"
    else:
        answers = {"silent": None, "http": b"HTTP/1.1 400 Bad Request\r\n\r\n", "closes": b""}
        with deaf() if form == "deaf" else listening(answers[form]) as address:
            yield address


FORMS = ["refused", "unknown", "deaf", "silent", "http", "closes"]


def store_call(address: str, **limits: Any) -> object:
    with StoreClient(f"rmq://{address}", timeout_s=LONG, **limits) as client:
        return client.topics()


def names_call(address: str, **limits: Any) -> object:
    with NameServers((address,), LONG, ClientIdentity(), **limits) as servers:
        return servers.topics()


def two_names_call(address: str, **limits: Any) -> object:
    both = (address, f"localhost:{address.rpartition(':')[2]}")
    with NameServers(both, LONG, ClientIdentity(), **limits) as servers:
        return servers.brokers()


def broker_call(address: str, **limits: Any) -> object:
    found = Addresses((address,), has_master=True)
    with closing(BrokerClient("b", found, LONG, LONG, ClientIdentity(), **limits)) as client:
        return client.topics()


CALLS: list[Callable[..., object]] = [store_call, names_call, two_names_call, broker_call]


class AtOnce:
    """In place of `threading`: timers that do not wait, so none is late on a busy machine."""

    Thread = threading.Thread

    class Timer:
        daemon = False

        def __init__(self, _seconds: float, work: Callable[[], None]) -> None:
            self._work = work

        def start(self) -> None:
            self._work()

        def cancel(self) -> None:
            """Do nothing: it is over."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("call", CALLS)
def test_what_never_answered_is_given_up(
    call: Callable[..., object],
    form: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(contact, "_QUIET", 0.05)
    monkeypatch.setattr(contact, "threading", AtOnce)
    with (
        place(form) as address,
        caplog.at_level(logging.WARNING, "rmqstore_spark"),
        pytest.raises(ServiceError) as caught,
    ):
        call(address, connect_s=SHORT, retries=1_000_000)
    assert caught.value.can_pass
    assert address.partition(":")[0] in str(caught.value)
    assert f"{address}" in caplog.text.partition("Waiting for")[2]
    assert "connectTimeout" in caplog.text


def test_what_is_waited_for_is_told_meanwhile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(contact, "_QUIET", 0.01)
    waiting = contact.FirstContact("the process", LONG)
    waiting.because("It is silent.")
    with waiting:
        eventually(lambda: "Waiting for the process" in caplog.text)
    assert "yet. It is silent. Giving up after 600 s" in caplog.text


@pytest.mark.parametrize("form", ["refused", "unknown"])
@pytest.mark.parametrize("call", CALLS)
def test_without_retries_it_is_tried_once(call: Callable[..., object], form: str) -> None:
    with place(form) as address, pytest.raises(ServiceError):
        call(address, connect_s=LONG, retries=0)


@pytest.mark.parametrize("call", CALLS)
def test_nothing_is_told_of_what_fails_at_once(
    call: Callable[..., object], caplog: pytest.LogCaptureFixture
) -> None:
    with place("refused") as address, pytest.raises(ServiceError):
        call(address, retries=0)
    assert "Waiting" not in caplog.text


def test_encryption_that_one_side_lacks_ends_it(tmp_path: Path) -> None:
    made: Certificates = make_certificates(tmp_path)
    tls = ssl.create_default_context(cafile=made.ca)
    with listening(b"\0\0\0\x02{}") as plain:
        found, encrypted = Addresses((plain,), has_master=True), ClientIdentity(tls=tls)
        broker = BrokerClient("b", found, LONG, LONG, encrypted, connect_s=SHORT)
        with closing(broker), pytest.raises(ServiceError, match="TLS session"):
            broker.topics()


def test_one_that_was_reached_is_waited_for_longer(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "store", port=free_port())
    store.start()
    with StoreClient(store.endpoint, retries=30) as client:
        client.topics()
    store.stop()
    failed = threading.Event()

    def start() -> None:
        failed.wait()
        store.start()

    starter = threading.Thread(target=start)
    starter.start()
    with StoreClient(store.endpoint, retries=30, connect_s=0.001) as again:
        exchange = again.connection.exchange
        tries: list[int] = []

        def noted(*asked: Any) -> Any:
            tries.append(1)
            if len(tries) == 3:
                failed.set()
            return exchange(*asked)

        again.connection.exchange = noted  # type: ignore[method-assign,assignment]
        assert again.topics() == {}
    starter.join()
    store.stop()


def test_other_processes_of_a_program_know_what_was_reached(tmp_path: Path) -> None:
    contact.remember_in(str(tmp_path))
    contact.note_reached("rmq://h:1")
    contact._reached.clear()  # as in another process
    assert contact.was_reached("rmq://h:1")
    assert not contact.was_reached("rmq://h:2")


def test_a_resolver_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(LONG))
    with pytest.raises(TimeoutError, match="could not be looked up"):
        contact.looked_up("h", 1, 0.05)
    with pytest.raises(ServiceError, match="no answer in time"):
        names_call("some-host:9876", connect_s=SHORT)
    over.set()
    eventually(lambda: not any(t.name == "rmqstore-look-up" for t in threading.enumerate()))
