from __future__ import annotations

import logging
import pickle
import ssl
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.client import StoreClient
from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.errors import OptionError, RefusedError, ServiceError
from rmqstore_spark.server.auth import Security
from rmqstore_spark.types import StageInfo
from rmqstore_spark.wire.messages import CommitRequest, WriterId
from rmqstore_spark.wire.protocol import Code
from tests.support.certificates import Certificates, make_certificates, sign
from tests.support.processes.plainclient import PlainClient
from tests.support.processes.serving import block_of, served

SECRET = "5ecre7-5ecre7-5ecre7-5ecre7"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    return secret_file(tmp_path / "token", SECRET)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def secret_file(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def tls(certificates: Certificates) -> dict[str, Any]:
    return {
        "tls_cert_path": certificates.server_cert,
        "tls_key_path": certificates.server_key,
    }


@pytest.mark.threat("Who may connect")
def test_a_token_is_asked_for_by_every_call(
    tmp_path: Path, token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = secret_file(tmp_path / "wrong", SECRET.upper())
    caplog.set_level(logging.DEBUG)
    with served(tmp_path / "store", token_path=str(token_file)) as here:
        with StoreClient(here.endpoint, token_file=token_file) as client:
            assert client.topics() == {}
            with client.put_stream() as stream:
                assert stream.put(block_of([b"a"])).is_ok
        for given in (None, wrong):
            with StoreClient(here.endpoint, token_file=given, retries=0) as client:
                with pytest.raises(ServiceError, match="tokenFile") as failure:
                    client.stop()
                assert SECRET.lower() not in str(failure.value).lower()
                with pytest.raises(ServiceError, match="tokenFile"):
                    client.put_stream().put(block_of([b"a"]))
        with PlainClient(here.endpoint) as raw:
            assert raw.ask(Code.READ, b"{}").status == "UNAUTHENTICATED"
        assert not here.stopped.is_set()
        assert here.store.stats()["putMessages"] == 1
    assert SECRET.lower() not in caplog.text.lower()


@pytest.mark.parametrize(
    "shown",
    ["", "Bearer", SECRET, f"bearer {SECRET}", f"Bearer {SECRET} ", f"Bearer {SECRET}, {SECRET}"],
)
def test_only_the_whole_token_is_one(tmp_path: Path, token_file: Path, shown: str) -> None:
    with served(tmp_path / "store", token_path=str(token_file)) as here:
        with PlainClient(here.endpoint) as raw:
            assert raw.ask(Code.LOGIN, shown.encode()).status == "UNAUTHENTICATED"
            assert not list(raw.answers())
        with PlainClient(here.endpoint, SECRET) as raw:
            assert raw.ask(Code.TOPICS, b"{}").json() == {"topics": {}}


@pytest.mark.threat("Who may connect")
def test_secrets_do_not_show_or_travel(token_file: Path) -> None:
    security = Security.of(StoreConfig(token_path=str(token_file)))
    client = StoreClient("rmq://127.0.0.1:1", token_file=token_file)
    for shown in (security, security.token, client, client.connection):
        assert SECRET not in repr(shown)
        assert SECRET not in str(shown)
    with pytest.raises(TypeError):
        pickle.dumps(security.token)


def test_tls(tmp_path: Path, certificates: Certificates) -> None:
    with served(tmp_path / "store", **tls(certificates)) as here:
        assert here.endpoint.startswith("rmqs://127.0.0.1:")
        with StoreClient(here.endpoint, tls_ca=certificates.ca) as client:
            assert client.topics() == {}
        with (
            StoreClient(here.endpoint, retries=0) as stranger,
            pytest.raises(ServiceError, match="tlsCaFile"),
        ):
            stranger.topics()
        with (
            StoreClient(here.endpoint.replace("rmqs:", "rmq:"), retries=0, timeout_s=5) as plain,
            pytest.raises(ServiceError, match="perhaps it is encrypted"),
        ):
            plain.topics()


def test_tls_to_a_process_that_has_none(tmp_path: Path) -> None:
    with (
        served(tmp_path / "store") as here,
        StoreClient(here.endpoint.replace("rmq:", "rmqs:"), retries=0) as client,
        pytest.raises(ServiceError, match="answers without encryption"),
    ):
        client.topics()


@pytest.mark.threat("Who may connect")
def test_mutual_tls(tmp_path: Path, certificates: Certificates) -> None:
    settings = {**tls(certificates), "tls_trust_cert_path": certificates.ca}
    with served(tmp_path / "store", **settings) as here:
        with StoreClient(
            here.endpoint,
            tls_ca=certificates.ca,
            tls_cert=certificates.client_cert,
            tls_key=certificates.client_key,
        ) as client:
            assert client.topics() == {}
        with (
            StoreClient(here.endpoint, tls_ca=certificates.ca, retries=0) as stranger,
            pytest.raises(ServiceError, match="tlsCertFile"),
        ):
            stranger.topics()


def test_a_writer_and_its_stages_belong_to_a_certificate(
    tmp_path: Path, certificates: Certificates
) -> None:
    """Another client of the same authority cannot drop its stages, or commit in its name."""
    settings = {**tls(certificates), "tls_trust_cert_path": certificates.ca}
    folder = Path(certificates.ca).parent
    with ExitStack() as stack:
        here = stack.enter_context(served(tmp_path / "store", **settings))
        ours, others = (
            stack.enter_context(
                StoreClient(
                    here.endpoint, tls_ca=certificates.ca, tls_cert=cert, tls_key=key, retries=0
                )
            )
            for cert, key in (sign(folder, name, f"DNS:{name}") for name in ("ours", "others"))
        )

        def stage(client: StoreClient) -> StageInfo:
            with client.stage_stream() as stream:
                stream.send(block_of([b"row"]))
                return stream.finish()

        first = CommitRequest(WriterId("stream", "q", 0), (stage(ours),))
        with pytest.raises(RefusedError, match="belongs to the client 'DNS:ours'"):
            others.abort([info.stage_id for info in first.stages])
        with pytest.raises(RefusedError, match="belongs to the client 'DNS:ours'"):
            others.commit(CommitRequest(WriterId("stream", "theirs", 0), first.stages))
        assert ours.commit(first).status == "COMMITTED"
        with pytest.raises(RefusedError, match="DNS:ours"):
            others.commit(CommitRequest(WriterId("stream", "q", 1), (stage(others),)))
        second = CommitRequest(WriterId("stream", "q", 1), (stage(ours),))
        assert ours.commit(second).status == "COMMITTED"


@pytest.mark.threat("Who may connect")
@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_machines_need_tls_and_a_token(
    address: str, token_file: Path, certificates: Certificates
) -> None:
    token: dict[str, Any] = {"token_path": str(token_file)}
    for settings, missing in (
        ({}, "tlsCertPath"),
        (token, "tlsCertPath"),
        (tls(certificates), "tokenPath"),
    ):
        with pytest.raises(OptionError, match=missing):
            Security.of(StoreConfig(bind_address=address, **settings))
    assert Security.of(StoreConfig(bind_address=address, **tls(certificates), **token)).token
    mutual: dict[str, Any] = {**tls(certificates), "tls_trust_cert_path": certificates.ca}
    context = Security.of(StoreConfig(bind_address=address, **mutual)).tls
    assert context is not None
    assert context.verify_mode == ssl.CERT_REQUIRED


@pytest.mark.threat("Who may connect")
@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o620, 0o666])
def test_secrets_that_others_can_read_or_change_are_refused(
    tmp_path: Path, certificates: Certificates, mode: int
) -> None:
    token = secret_file(tmp_path / "open", SECRET, mode)
    with pytest.raises(OptionError, match="chmod 600"):
        Security.of(StoreConfig(token_path=str(token)))
    with pytest.raises(OptionError, match="chmod 600"):
        StoreClient("rmq://127.0.0.1:1", token_file=token)
    key = secret_file(tmp_path / "key", Path(certificates.server_key).read_text(), mode)
    with pytest.raises(OptionError, match="chmod 600"):
        Security.of(StoreConfig(tls_cert_path=certificates.server_cert, tls_key_path=str(key)))


@pytest.mark.parametrize(
    "text",
    ["", "short", "has a space in the middle", "x" * 5000, "two\nlines-of-a-token", "ä" * 20],
)
def test_files_that_hold_no_token(tmp_path: Path, text: str) -> None:
    with pytest.raises(OptionError, match="token") as failure:
        Security.of(StoreConfig(token_path=str(secret_file(tmp_path / "token", text))))
    assert text == "" or text not in str(failure.value)


def test_a_token_never_leaves_unencrypted(token_file: Path) -> None:
    with pytest.raises(OptionError, match="unencrypted"):
        StoreClient("rmq://store.example:10921", token_file=token_file)
    StoreClient("rmqs://store.example:10921", token_file=token_file).close()


def test_settings_that_do_not_fit(certificates: Certificates) -> None:
    cert, key = certificates.server_cert, certificates.server_key
    wrong: tuple[dict[str, Any], ...] = (
        {"tls_cert_path": cert},
        {"tls_key_path": key},
        {"tls_trust_cert_path": certificates.ca},
        {"tls_cert_path": key, "tls_key_path": key},
        {"tls_cert_path": cert, "tls_key_path": cert},
        {"tls_cert_path": "/nonexistent", "tls_key_path": key},
        {"token_path": "/"},
    )
    for settings in wrong:
        with pytest.raises(OptionError):
            Security.of(StoreConfig(**settings))
    with pytest.raises(OptionError, match="rmqs://"):
        StoreClient("rmq://127.0.0.1:1", tls_ca=certificates.ca)
    with pytest.raises(OptionError, match="together"):
        StoreClient("rmqs://127.0.0.1:1", tls_cert=cert)
