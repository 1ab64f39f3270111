"""The ports of a broker: TLS beside plain connections, and the VIP port."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.errors import OptionError, ServiceError
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.frames import FrameReader, encode_frame
from rmqstore_spark.remoting.tls import client_context
from tests.broker.broker import Served, broker, message
from tests.broker.protection.accounts import APP, write_accounts
from tests.support.certificates import Certificates, make_certificates, trusting
from tests.support.processes.ports import free_port


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls") / "certificates")


def ask(port: int, request: Command, tls: ssl.SSLContext | None = None) -> Command | None:
    """The answer that comes from a port; None if the connection is refused or ended."""
    reader = FrameReader()
    with (
        suppress(OSError),
        socket.create_connection(("127.0.0.1", port), timeout=120) as plain,
        tls.wrap_socket(plain, server_hostname="127.0.0.1") if tls else plain as talking,
    ):
        talking.sendall(encode_frame(request))
        while data := talking.recv(1 << 16):
            commands, error = reader.feed(data)
            assert error is None
            if commands:
                return commands[0]
    return None


def sends(served: Served, tls: ssl.SSLContext | None) -> bool:
    """Whether a client can send there."""
    answer = ask(served.store.config.listen_port, message(b"x"), tls)
    return answer is not None and answer.code == 0


@pytest.mark.threat("TLS")
@pytest.mark.parametrize("mode", ["permissive", "enforcing", "disabled"])
def test_connections_are_plain_or_tls_as_the_mode_says(
    tmp_path: Path, given: Certificates, mode: str
) -> None:
    keys = {
        "tls_server_mode": mode,
        "tls_server_cert_path": given.server_cert,
        "tls_server_key_path": given.server_key,
    }
    with broker(tmp_path / "store", **keys) as served:
        assert sends(served, client_context(given.ca)) == (mode != "disabled")
        assert sends(served, None) == (mode != "enforcing")
        # RocketMQ's clients check no certificate unless they are told to.
        assert sends(served, trusting()) == (mode != "disabled")


@pytest.mark.threat("TLS")
def test_clients_may_have_to_show_a_certificate(tmp_path: Path, given: Certificates) -> None:
    keys = {
        "tls_server_mode": "enforcing",
        "tls_server_cert_path": given.server_cert,
        "tls_server_key_path": given.server_key,
        "tls_server_trust_cert_path": given.ca,
    }
    with broker(tmp_path / "store", **keys) as served:
        own = client_context(given.ca, given.client_cert, given.client_key)
        assert sends(served, own)
        assert not sends(served, client_context(given.ca))


@pytest.mark.parametrize(
    "keys",
    [
        {"tls_server_mode": "enforcing"},
        {"tls_server_cert_path": "/x"},
        {"tls_server_key_path": "/x"},
        {"tls_server_trust_cert_path": "/x"},
        {"tls_server_cert_path": "/x", "tls_server_key_path": "/x"},
    ],
)
def test_certificates_that_are_missing_stop_the_start(tmp_path: Path, keys: Any) -> None:
    with (
        pytest.raises(OptionError, match=r"tlsServer|/x cannot be read"),
        broker(tmp_path / "store", **keys),
    ):
        pass


@pytest.mark.threat("TLS")
@pytest.mark.parametrize("mode", [{}, {"tls_server_mode": "disabled"}])
def test_certificates_of_clients_are_nothing_beside_plain_connections(
    tmp_path: Path, given: Certificates, mode: Any
) -> None:
    keys = {
        "tls_server_cert_path": given.server_cert,
        "tls_server_key_path": given.server_key,
        "tls_server_trust_cert_path": given.ca,
    }
    with (
        pytest.raises(OptionError, match="tlsServerTrustCertPath needs tlsServerMode=enforcing"),
        broker(tmp_path / "store", **keys, **mode),
    ):
        pass


@pytest.mark.threat("TLS")
def test_a_key_that_others_can_read_stops_the_start(tmp_path: Path, given: Certificates) -> None:
    key = tmp_path / "server.key"
    key.write_bytes(Path(given.server_key).read_bytes())
    key.chmod(0o644)
    keys = {"tls_server_cert_path": given.server_cert, "tls_server_key_path": str(key)}
    with (
        pytest.raises(OptionError, match="is accessible to others"),
        broker(tmp_path / "store", **keys),
    ):
        pass


def with_port_below() -> int:
    """A port that nobody uses, like the one two below it."""
    while True:
        port = free_port()
        try:
            with socket.create_server(("127.0.0.1", port - 2)):
                return port
        except OSError:
            continue


def test_the_vip_port_serves_the_same(tmp_path: Path) -> None:
    port = with_port_below()
    accounts = write_accounts(tmp_path / "plain_acl.yml")
    settings = {"listen_port": port, "vip_listen_port": -1, "acl_enable": True}
    with broker(tmp_path / "store", acl_path=accounts, **settings):
        requests = [message(b"x", "RecAcl"), APP.signed(message(b"x", "RecAcl"))]
        answers = [ask(port - 2, each) for each in requests]
        assert [answer and answer.code for answer in answers] == [1, 0]


def test_a_vip_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        vip = taken.getsockname()[1]
        with (
            pytest.raises(ServiceError, match=rf"127.0.0.1:{vip}: .* set vipListenPort=0"),
            broker(tmp_path / "store", vip_listen_port=vip),
        ):
            pass


def test_there_is_no_port_below_the_first(tmp_path: Path) -> None:
    with (
        pytest.raises(OptionError, match="the VIP port would be 2 below it"),
        broker(tmp_path / "store", listen_port=2, vip_listen_port=-1),
    ):
        pass
