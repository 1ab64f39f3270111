"""All clients come to one port: RocketMQ's, Spark's and the command, plain and over TLS."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.broker.protection import Protection
from rmqstore_spark.client import StoreClient
from rmqstore_spark.engine import StoreConfig
from rmqstore_spark.errors import OptionError, RefusedError, ServiceError
from rmqstore_spark.wire.protocol import Code
from tests.broker.broker import ask, message
from tests.support.accounts import guarded
from tests.support.certificates import Certificates, make_certificates
from tests.support.processes.plainclient import PlainClient, connected, end_sending, request
from tests.support.processes.serving import (
    Served,
    StoreProcess,
    block_of,
    eventually,
    served,
    serving_brokers_clients,
)

ALL: dict[str, Any] = {"clients": "all"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["disabled", "permissive", "enforcing"])
def here(
    request: pytest.FixtureRequest, tmp_path: Path, certificates: Certificates
) -> Iterator[Served]:
    tls: dict[str, Any] = {}
    if request.param != "disabled":
        tls = {
            "tls_server_mode": request.param,
            "tls_server_cert_path": certificates.server_cert,
            "tls_server_key_path": certificates.server_key,
        }
    with served(tmp_path / "store", **ALL, **tls) as found, serving_brokers_clients(found):
        found.store.create_topic("orders")
        yield found


def mode_of(here: Served) -> str:
    return here.port.protection.tls.mode.value


def address_of(here: Served) -> str:
    return f"127.0.0.1:{here.server.endpoints[0].port}"


def test_each_client_is_understood(here: Served, certificates: Certificates) -> None:
    address, mode = address_of(here), mode_of(here)
    assert here.endpoint == f"rmq{'' if mode == 'disabled' else 's'}://{address}"
    for scheme, may in (("rmq", mode != "enforcing"), ("rmqs", mode != "disabled")):
        trust = certificates.ca if scheme == "rmqs" else None
        endpoint = f"{scheme}://{address}"
        with StoreClient(endpoint, tls_ca=trust, retries=0, timeout_s=10) as client:
            if may:
                with client.put_stream() as stream:
                    assert stream.put(block_of([b"ours"], "orders")).is_ok
            else:
                with pytest.raises((RefusedError, ServiceError), match=r"rmqs?://"):
                    client.topics()
    if mode != "enforcing":
        (answer,) = ask(address, message(b"theirs", "orders"))
        assert answer.code == 0
    assert (
        here.store.stats()["putMessages"] == {"permissive": 3, "disabled": 2, "enforcing": 1}[mode]
    )


def test_a_first_request_in_pieces_is_understood(tmp_path: Path) -> None:
    with served(tmp_path / "store", **ALL) as here, serving_brokers_clients(here):
        data = request(Code.OPEN, b"{}")
        for cut in (1, 4, 8, 9, 17, 18, 19, len(data) - 1):
            with PlainClient(here.endpoint) as peer:
                peer.send(data[:cut])
                eventually(lambda: _has_arrived(peer.socket))
                peer.send(data[cut:])
                assert peer.answer().json()["topics"] == {}


def _has_arrived(peer: socket.socket) -> bool:
    """Whether the other end's system has what was sent."""
    import fcntl
    import struct
    import termios

    left = fcntl.ioctl(peer.fileno(), termios.TIOCOUTQ, b"\0" * 4)
    return struct.unpack("i", left)[0] == 0


@pytest.mark.threat("Resource limits")
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\0",
        request(Code.OPEN, b"{}")[:17],
        b"\x16",
        b"\x16\x03\x01\xff\xff" + bytes(100),
        b"\x16\x03\x01\x02\x00\x01",
    ],
)
def test_who_does_not_say_what_he_is_costs_nothing_and_is_ended(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    from rmqstore_spark.broker import runner

    limits = runner._LIMITS.__class__(in_flight=10, idle_seconds=1.0, frame_seconds=1.0)
    monkeypatch.setattr(runner, "_LIMITS", limits)
    tls = {
        "tls_server_cert_path": certificates.server_cert,
        "tls_server_key_path": certificates.server_key,
    }
    with (
        served(tmp_path / "store", **ALL, **tls) as here,
        serving_brokers_clients(here),
        ExitStack() as opened,
    ):
        strangers = [
            opened.enter_context(connected(f"rmq://{address_of(here)}")) for _ in range(20)
        ]
        for stranger in strangers:
            stranger.sendall(sent)
        began = time.process_time()
        for stranger in strangers:
            with suppress(ConnectionError):
                while stranger.recv(1 << 16):
                    pass
        assert time.process_time() - began < 1.0  # nobody looks at them again and again
        with StoreClient(here.endpoint, tls_ca=certificates.ca) as client:
            assert client.topics() == {}


def test_a_tls_client_of_rocketmq_is_not_taken_for_ours(
    tmp_path: Path, certificates: Certificates
) -> None:
    """Only who asks for our protocol alone in the handshake gets it."""
    tls = {
        "tls_server_cert_path": certificates.server_cert,
        "tls_server_key_path": certificates.server_key,
    }
    with served(tmp_path / "store", **ALL, **tls) as here, serving_brokers_clients(here):
        for protocols, is_ours in (
            ([], False), (["h2"], False), (["rmqstore"], True), (["rmqstorf"], False),
        ):  # fmt: skip
            context = ssl.create_default_context(cafile=certificates.ca)
            if protocols:
                context.set_alpn_protocols(protocols)
            with PlainClient(f"rmqs://{address_of(here)}", tls=context) as peer:
                peer.send(request(Code.OPEN, b"{}"))
                length = int.from_bytes(peer.socket.recv(8)[:4], "big")
                answer = peer.socket.recv(length)
                assert (b"not supported" in answer) is not is_ours


def test_who_is_served_is_one_key(tmp_path: Path) -> None:
    for clients, ours, theirs in (
        ("spark", True, False), ("rocketmq", False, True), ("all", True, True),
    ):  # fmt: skip
        folder = tmp_path / clients
        folder.mkdir()
        with StoreProcess(
            folder / "store", folder, f"--clients={clients}", "--set=vipListenPort=0"
        ) as process:
            ready = process.ready()
            assert bool(ready["endpoint"]) is ours
            assert bool(ready["broker"]) is theirs
            if ours and theirs:
                assert ready["endpoint"] == f"rmq://{ready['broker']}"
            port = (ready["broker"] or ready["endpoint"]).rpartition(":")[2]
            with StoreClient(f"rmq://127.0.0.1:{port}", retries=0, timeout_s=10) as client:
                if ours:
                    assert client.topics() is not None
                else:
                    with pytest.raises(ServiceError, match="a broker's port"):
                        client.topics()


def _sockets() -> int:
    """How many sockets this process has open: the store opens files in the background."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # it was closed meanwhile
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return found


@pytest.mark.threat("Resource limits")
@pytest.mark.parametrize("how", ["closes", "sends no more", "resets"])
def test_who_goes_early_leaves_nothing_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    begin = request(Code.OPEN, b"{}")
    with served(tmp_path / "store", **ALL) as here, serving_brokers_clients(here):
        with StoreClient(here.endpoint) as client:
            client.topics()
        with connected(f"rmq://{address_of(here)}") as peer:
            peer.sendall(b"\0")
        eventually(lambda: not here.server.connections)
        before = _sockets()
        parts = [begin[:count] for count in (1, 3, 7, 8, 12, 17, 18, 40)]
        for sent in (*parts, b"\x16", b"\x16\x03"):
            with connected(f"rmq://{address_of(here)}") as peer:
                peer.sendall(sent)
                if how == "sends no more":
                    with suppress(ConnectionError):
                        end_sending(peer)
                        assert not peer.recv(100).startswith(b"HTTP")
                elif how == "resets":
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        eventually(lambda: _sockets() <= before)
        with StoreClient(here.endpoint) as client:
            assert client.topics() == {}
    assert "Traceback" not in caplog.text
    assert "never retrieved" not in caplog.text


@pytest.mark.parametrize("clients", ["spark", "rocketmq", "all"])
def test_the_port_is_open_until_the_store_is_closed(tmp_path: Path, clients: str) -> None:
    """`rmqstore stop` counts on it, and who starts the next process then."""
    with StoreProcess(
        tmp_path / "store", tmp_path, f"--clients={clients}", "--set=vipListenPort=0",
        environment={"RMQSTORE_FAILPOINT": "close.before_guard:1:stop"},
    ) as process:  # fmt: skip
        ready = process.ready()
        host, _, port = (ready["broker"] or ready["endpoint"].removeprefix("rmq://")).partition(":")
        process.signal(signal.SIGTERM)
        state = Path(f"/proc/{process.process.pid}/stat")
        eventually(lambda: state.read_text().rpartition(") ")[2].startswith("T"))
        socket.create_connection((host, int(port)), 10).close()
        process.signal(signal.SIGCONT)
        assert process.wait() == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), 10)


@pytest.mark.parametrize("protect", ["everybody is white", "nothing"])
def test_everybody_is_no_protection(
    tmp_path: Path, certificates: Certificates, protect: str
) -> None:
    white = ("*",) if protect == "everybody is white" else ()
    tls: dict[str, Any] = {
        "tls_server_mode": "enforcing",
        "tls_server_cert_path": certificates.server_cert,
        "tls_server_key_path": certificates.server_key,
    }
    accounts = guarded(tmp_path / "accounts.yml", white=white)
    config = StoreConfig(bind_address="0.0.0.0", **tls, **accounts)
    if white:
        with pytest.raises(OptionError, match="anyone could read and write"):
            Protection.of(config)
    else:
        assert Protection.of(config).accounts
