"""Replication over TLS: between two of ours, and everything else that may knock at such a port."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.errors import OptionError
from rmqstore_spark.ha.follower import LogFollower
from tests.ha.peers import (
    PlainMaster,
    PlainSlave,
    caught_up,
    following,
    log_bytes,
    mastering,
    queue_files,
)
from tests.support.certificates import Certificates, make_certificates, sign
from tests.support.messages.batches import commit_batch, rows_block
from tests.support.waiting import PATIENCE, eventually


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls") / "certificates")


def theirs(given: Certificates, **more: Any) -> dict[str, Any]:
    """The settings of a master."""
    files = {"tls_server_cert_path": given.server_cert, "tls_server_key_path": given.server_key}
    return {"ha_tls_enable": True, **files, **more}


def ours(given: Certificates, **more: Any) -> dict[str, Any]:
    """The settings of a follower."""
    return {"ha_tls_enable": True, "tls_client_trust_cert_path": given.ca, **more}


def shown(given: Certificates) -> dict[str, str]:
    """The certificate of a follower, as settings."""
    return {"tls_client_cert_path": given.client_cert, "tls_client_key_path": given.client_key}


def greeting(given: Certificates) -> bytes:
    """What a TLS client says first."""
    out = ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=given.ca).wrap_bio(
        ssl.MemoryBIO(), out, server_hostname="localhost"
    )
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


def fails_with(follower: LogFollower, words: str) -> None:
    """Wait until a follower says why it has no connection; it tries again."""
    eventually(lambda: words in follower.standing().error)
    assert follower.standing().connects == 0
    assert follower.failure is None


def test_a_follower_copies_and_acknowledges_over_mutual_tls(
    tmp_path: Path, given: Certificates
) -> None:
    both = {"mapped_file_size_commit_log": 1 << 20, "ha_send_heartbeat_interval": 10}
    master_has = theirs(
        given, tls_server_trust_cert_path=given.ca, broker_role="SYNC_MASTER", **both
    )
    slave_has = ours(given, ha_acknowledge="received", **shown(given), **both)
    with mastering(tmp_path / "master", **master_has) as (store, master):
        store.put(rows_block([b"%d" % n * 4000 for n in range(300)], ("orders",)))
        with following(tmp_path / "slave", master.address, **slave_has) as (copy, _):
            caught_up(copy, store.published_end)
            eventually(lambda: store.slaves.held() == store.published_end)
            for turn in range(5):
                assert store.put(rows_block([b"x" * 9000] * 3)).ok
                commit_batch(store, turn)
            end = store.published_end
            assert copy.replica.end == end
    assert end > 2 << 20
    assert log_bytes(tmp_path / "slave", 0, end) == log_bytes(tmp_path / "master", 0, end)
    assert queue_files(tmp_path / "slave") == queue_files(tmp_path / "master")


@pytest.mark.threat("Replication")
@pytest.mark.parametrize("wrong", ["authority", "name"])
def test_a_master_that_cannot_be_verified_is_not_followed(
    tmp_path: Path, given: Certificates, wrong: str
) -> None:
    files = theirs(given)
    if wrong == "authority":
        trust, words = given.client_cert, "master's certificate is refused"
    else:
        trust, words = given.ca, "certificate is not valid for '127.0.0.1'"
        cert, key = sign(Path(given.ca).parent, "elsewhere", "DNS:elsewhere")
        files |= {"tls_server_cert_path": cert, "tls_server_key_path": key}
    settings = ours(given, tls_client_trust_cert_path=trust)
    with mastering(tmp_path / "master", **files) as (store, master):
        store.put(rows_block([b"one"]))
        with following(tmp_path / "slave", master.address, **settings) as (copy, follower):
            fails_with(follower, words)
            assert copy.replica.end == 0


@pytest.mark.threat("Replication")
def test_a_slave_without_a_certificate_is_refused_where_one_is_wanted(
    tmp_path: Path, given: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    settings = theirs(given, tls_server_trust_cert_path=given.ca)
    with mastering(tmp_path / "master", **settings) as (store, master):
        store.put(rows_block([b"one"]))
        with following(tmp_path / "slave", master.address, **ours(given)) as (copy, follower):
            eventually(lambda: "certificate required" in follower.standing().error)
            assert copy.replica.end == 0
        eventually(lambda: "did not return a certificate" in caplog.text)


@pytest.mark.threat("Replication")
def test_a_plain_slave_is_told_in_the_log_and_gets_nothing(
    tmp_path: Path, given: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    with mastering(tmp_path / "master", **theirs(given)) as (store, master):
        store.put(rows_block([b"one"]))
        with PlainSlave(master.address) as slave:
            slave.report(1)
            assert slave.connection.recv(1) == b""
        assert "it does not use TLS, and haTlsEnable is set here" in caplog.text
        with following(tmp_path / "slave", master.address) as (_, follower):
            eventually(lambda: "before it sent anything" in follower.standing().error)


def test_tls_at_a_plain_master_is_told_at_both_ends(
    tmp_path: Path, given: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    with mastering(tmp_path / "master", broker_role="SYNC_MASTER") as (store, master):
        with following(tmp_path / "slave", master.address, **ours(given)) as (_, follower):
            fails_with(follower, "is haTlsEnable set at the master?")
        assert "it uses TLS, and haTlsEnable is not set here" in caplog.text
        assert store.slaves.held() == 0
    with (
        PlainMaster(lambda connection, _: connection.sendall(bytes(500))) as plain,
        following(tmp_path / "other", plain.address, **ours(given)) as (_, follower),
    ):
        fails_with(follower, "is haTlsEnable set at the master?")


@pytest.mark.threat("Replication")
def test_a_handshake_that_ends_anywhere_or_never_costs_nothing(
    tmp_path: Path, given: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    hello = greeting(given)
    with mastering(tmp_path / "master", **theirs(given)) as (_, master):
        cuts = [0, 1, 5, 60, len(hello) - 1, len(hello)]
        for size in cuts:
            with PlainSlave(master.address) as slave:
                slave.connection.sendall(hello[:size])
                slave.connection.shutdown(socket.SHUT_WR)
                assert slave.is_closed()
        for said in (b"\x16" + bytes(500), hello + hello):
            with PlainSlave(master.address) as slave:
                slave.connection.sendall(said)
                assert slave.is_closed()
        assert caplog.text.count("its TLS handshake failed") >= len(cuts)
    settings = theirs(given, ha_housekeeping_interval=500)
    with mastering(tmp_path / "master", **settings) as (store, master):
        with PlainSlave(master.address) as silent, PlainSlave(master.address) as half:
            half.connection.sendall(hello[:60])
            assert silent.is_closed()
            assert half.is_closed()
        eventually(lambda: len(store.slaves) == 0)
        assert "Traceback" not in caplog.text
        store.put(rows_block([b"one"]))
        with following(tmp_path / "slave", master.address, **ours(given)) as (copy, _):
            caught_up(copy, store.published_end)


def test_no_put_waits_for_a_slave_before_its_handshake(tmp_path: Path, given: Certificates) -> None:
    settings = theirs(given, broker_role="SYNC_MASTER")
    with (
        mastering(tmp_path / "master", **settings) as (store, master),
        PlainSlave(master.address) as slave,
    ):
        slave.connection.sendall(greeting(given)[:60])
        eventually(lambda: len(store.slaves) == 1)
        assert store.put(rows_block([b"one"])).status is PutStatus.SLAVE_NOT_AVAILABLE


def test_a_master_that_does_not_finish_the_handshake_is_left(
    tmp_path: Path, given: Certificates
) -> None:
    gone = threading.Event()
    with PlainMaster(lambda *_: gone.wait(PATIENCE)) as master:
        settings = ours(given, ha_housekeeping_interval=200)
        with following(tmp_path / "one", master.address, **settings) as (_, follower):
            fails_with(follower, "the TLS handshake took more than 0.2 s")
        before = master.connections
        settings = ours(given, ha_housekeeping_interval=3_600_000)
        with following(tmp_path / "two", master.address, **settings) as (_, follower):
            eventually(lambda: master.connections > before)
            closing = threading.Thread(target=follower.close, daemon=True)
            closing.start()
            closing.join(PATIENCE)
            assert not closing.is_alive()
        gone.set()


def test_files_that_cannot_be_used_are_told_at_the_start(
    tmp_path: Path, given: Certificates
) -> None:
    open_key = tmp_path / "open.key"
    open_key.write_bytes(Path(given.server_key).read_bytes())
    open_key.chmod(0o644)
    for settings, words in (
        ({"ha_tls_enable": True}, "at a master needs tlsServerCertPath and tlsServerKeyPath"),
        (theirs(given, tls_server_key_path=str(open_key)), "chmod 600"),
        (theirs(given, tls_server_trust_cert_path="/x"), "/x could not be read"),
    ):
        with (
            pytest.raises(OptionError, match=words),
            mastering(tmp_path / "master", **settings),
        ):
            pass
    with (
        pytest.raises(OptionError, match="/x could not be read"),
        following(
            tmp_path / "slave", "127.0.0.1:9", **ours(given, tls_client_trust_cert_path="/x")
        ),
    ):
        pass
