"""Plain and TLS connections on one port."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rmqstore_spark.errors import OptionError, ServiceError
from rmqstore_spark.remoting.addresses import bound_port
from rmqstore_spark.remoting.backlog import Limits
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.server import RemotingServer
from rmqstore_spark.remoting.tls import (
    ServerTls,
    TlsMode,
    client_context,
    server_context,
    tls_reason,
)
from tests.remoting.talking import BIG, ECHO, Peer, TestService, request, run, until
from tests.support.certificates import Certificates, make_certificates, trusting


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@asynccontextmanager
async def serving(
    given: Certificates, mode: TlsMode, *, trust: str = "", limits: Limits | None = None
) -> AsyncIterator[tuple[str, TestService]]:
    """Run a server with TLS; give its address and service."""
    service = TestService()
    context = server_context(given.server_cert, given.server_key, trust)
    server = RemotingServer(service, limits or Limits(), ServerTls(mode, context))
    try:
        yield await server.start(bound_port("127.0.0.1", 0)), service
    finally:
        await server.close()


async def _echo(address: str, tls: ssl.SSLContext | None) -> bytes:
    async with await RemotingClient.connect(address, tls=tls, seconds=30) as client:
        big = await client.ask(Command(BIG), 30)
        assert len(big.body) == 1 << 20
        return (await client.ask(Command(ECHO, body=b"x"), 30)).body


@pytest.mark.parametrize("mode", [TlsMode.PERMISSIVE, TlsMode.ENFORCING])
def test_tls_clients_are_served(certificates: Certificates, mode: TlsMode) -> None:
    async def test() -> None:
        async with serving(certificates, mode) as (address, service):
            tls = client_context(certificates.ca)
            assert await asyncio.gather(*(_echo(address, tls) for _ in range(5))) == [b"x"] * 5
            assert await _echo(address, trusting()) == b"x"
            await until(lambda: service.closed_count == 6)

    run(test())


def test_a_permissive_server_serves_plain_clients_too(certificates: Certificates) -> None:
    async def test() -> None:
        async with serving(certificates, TlsMode.PERMISSIVE) as (address, _):
            for tls in (None, client_context(certificates.ca), None):
                assert await _echo(address, tls) == b"x"
            slow = await Peer.connect(address)  # byte by byte
            for byte in request(ECHO, b"y"):
                await slow.send(bytes([byte]))
            assert (await slow.commands(1))[0].body == b"y"

    run(test())


class _FailingOnce(RemotingServer):
    has_failed = False

    def has_room(self, opening: int, peer: str) -> bool:
        if not self.has_failed:
            self.has_failed = True
            raise RuntimeError("no room for this once")
        return super().has_room(opening, peer)


def test_a_connection_that_fails_is_not_the_last(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        context = server_context(certificates.server_cert, certificates.server_key)
        server = _FailingOnce(TestService(), Limits(), ServerTls(TlsMode.PERMISSIVE, context))
        address = await server.start(bound_port("127.0.0.1", 0))
        await Peer.connect(address)
        assert await _echo(address, None) == b"x"
        await server.close()

    run(test())
    assert "A connection could not be accepted." in caplog.messages


def test_an_enforcing_server_closes_plain_connections(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with serving(certificates, TlsMode.ENFORCING) as (address, service):
            for _ in range(3):
                peer = await Peer.connect(address)
                await peer.send(request(ECHO))
                assert await peer.ended()
            assert not service.closed_count
            assert await _echo(address, client_context(certificates.ca)) == b"x"

    run(test())
    assert caplog.text.count("did not use TLS") == 1


def test_a_server_without_tls_closes_tls_connections() -> None:
    async def test() -> None:
        server = RemotingServer(TestService(), Limits())
        try:
            address = await server.start(bound_port("127.0.0.1", 0))
            with pytest.raises(ServiceError, match="closed the connection before a TLS session"):
                await _echo(address, trusting())
            assert await _echo(address, None) == b"x"
        finally:
            await server.close()

    run(test())


def test_a_client_does_not_talk_to_a_server_that_it_cannot_check(
    certificates: Certificates, tmp_path: Path
) -> None:
    stranger = make_certificates(tmp_path / "others")

    async def test() -> None:
        async with serving(certificates, TlsMode.ENFORCING) as (address, service):
            for trust in (stranger.ca, ""):
                with pytest.raises(ServiceError, match=r"TLS session: .*(self.signed|issuer)"):
                    await _echo(address, client_context(trust))
            assert not service.closed_count

    run(test())


def test_clients_need_a_certificate_where_the_server_says_so(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    given = certificates

    async def test() -> None:
        async with serving(given, TlsMode.ENFORCING, trust=given.ca) as (address, service):
            mine = client_context(given.ca, given.client_cert, given.client_key)
            assert await _echo(address, mine) == b"x"
            await until(lambda: service.closed_count == 1)
            with pytest.raises(ServiceError, match="closed"):
                await _echo(address, client_context(given.ca))
            assert service.closed_count == 1

    run(test())
    assert "did not begin a TLS session" in caplog.text


def test_garbage_silence_and_goodbyes_before_a_session_cost_nothing(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        bounds = Limits(idle_seconds=0.5, frame_seconds=0.5)
        async with serving(certificates, TlsMode.PERMISSIVE, limits=bounds) as (address, service):
            gone = await Peer.connect(address)
            gone.close()
            garbage = await Peer.connect(address)
            await garbage.send(b"\x16" + bytes(500))
            assert await garbage.ended()
            half = await Peer.connect(address)
            await half.send(b"\x16\x03\x01")
            silent = [await Peer.connect(address) for _ in range(15)]
            for peer in (half, *silent):
                assert await peer.ended()
            assert not service.closed_count
            assert await _echo(address, client_context(certificates.ca)) == b"x"

    run(test())
    assert "Traceback" not in caplog.text


def test_bodies_of_all_sizes_pass_also_to_a_peer_that_reads_late(
    certificates: Certificates,
) -> None:
    sizes = [0, 1, 1000, *range(16_300, 16_400, 9), 65_535, 65_536, 262_144, 1 << 20, 9_000_001]
    bodies = [bytes([number + 1]) * size for number, size in enumerate(sizes)]

    async def test() -> None:
        async with serving(certificates, TlsMode.ENFORCING) as (address, _):
            peer = await Peer.connect(address, client_context(certificates.ca))
            for body in bodies:
                peer.send_some(request(ECHO, body))
            assert [each.body for each in await peer.commands(len(bodies))] == bodies

    run(test())


def test_a_request_before_a_farewell_is_answered(certificates: Certificates) -> None:
    async def test() -> None:
        async with serving(certificates, TlsMode.ENFORCING) as (address, service):
            peer = await Peer.connect(address, client_context(certificates.ca))
            peer.send_some(request(ECHO, b"x"))
            assert (await peer.commands(1))[0].body == b"x"
            peer.close()
            await until(lambda: service.closed_count == 1)

    run(test())


def test_garbage_within_a_session_ends_it(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with serving(certificates, TlsMode.ENFORCING) as (address, service):
            host, port = address.split(":")
            plain = await asyncio.to_thread(socket.create_connection, (host, int(port)), 30)
            context = client_context(certificates.ca)
            with await asyncio.to_thread(context.wrap_socket, plain, server_hostname=host) as tls:
                await until(lambda: len(service.connections) == 1)
                os.write(tls.fileno(), b"not a record of TLS")
                await until(lambda: service.closed_count == 1)
            assert await _echo(address, context) == b"x"

    run(test())
    assert "Traceback" not in caplog.text


def test_those_that_are_silent_before_a_session_count_as_connections(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        bounds = Limits(connections=10)
        async with serving(certificates, TlsMode.PERMISSIVE, limits=bounds) as (address, service):
            silent = [await Peer.connect(address) for _ in range(15)]
            for peer in silent[10:]:
                assert await peer.ended()
            assert not service.connections

    run(test())
    assert "turned away" in caplog.text


def test_files_that_are_no_certificates_are_said_in_words(
    certificates: Certificates, tmp_path: Path
) -> None:
    given = certificates
    empty = tmp_path / "empty"
    empty.write_text("")
    for cert, key, word in (
        (given.server_cert, given.client_key, "are not a certificate and its private key"),
        (str(empty), given.server_key, "are not a certificate and its private key"),
        (str(tmp_path / "none"), given.server_key, "none could not be read"),
    ):
        with pytest.raises(OptionError, match=word):
            server_context(cert, key)
    with pytest.raises(OptionError, match="no CA certificates"):
        server_context(given.server_cert, given.server_key, str(empty))
    with pytest.raises(OptionError, match="could not be read"):
        client_context(str(tmp_path / "none"))


def test_what_openssl_says_of_a_certificate_goes_into_a_sentence() -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "IP address mismatch, certificate is not valid for '127.0.0.1'."
    assert tls_reason(error) == error.verify_message[:-1]


def test_only_a_plain_client_that_heard_nothing_is_told_of_tls(
    certificates: Certificates,
) -> None:
    async def test() -> None:
        async with serving(certificates, TlsMode.ENFORCING) as (address, _):
            with pytest.raises(ServiceError, match="may accept only TLS connections"):
                await _echo(address, None)
        async with serving(certificates, TlsMode.PERMISSIVE) as (address, _):
            assert await _echo(address, None) == b"x"

    run(test())
