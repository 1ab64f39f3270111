from __future__ import annotations

import ssl
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.base.types import CommitRequest, StageInfo, WriterId
from rmqstore_spark.broker.protection import Protection
from rmqstore_spark.client import StoreClient
from rmqstore_spark.engine import StoreConfig
from rmqstore_spark.errors import OptionError, RefusedError, ServiceError
from tests.support.accounts import account_file, guarded
from tests.support.certificates import Certificates, make_certificates, sign
from tests.support.processes.serving import block_of, served


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def tls(certificates: Certificates) -> dict[str, Any]:
    return {
        "tls_server_cert_path": certificates.server_cert,
        "tls_server_key_path": certificates.server_key,
    }


def mutual_tls(certificates: Certificates) -> dict[str, Any]:
    return {
        **tls(certificates),
        "tls_server_trust_cert_path": certificates.ca,
        "tls_server_mode": "enforcing",
    }


def test_tls(tmp_path: Path, certificates: Certificates) -> None:
    settings = {**tls(certificates), "tls_server_mode": "enforcing"}
    with served(tmp_path / "store", **settings) as here:
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
            pytest.raises(RefusedError, match="over TLS only"),
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
    settings = mutual_tls(certificates)
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
    settings = mutual_tls(certificates)
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
@pytest.mark.parametrize("clients", ["spark", "rocketmq", "all"])
def test_other_machines_need_tls_and_accounts(
    tmp_path: Path,
    address: str,
    clients: str,
    certificates: Certificates,
    caplog: pytest.LogCaptureFixture,
) -> None:
    accounts = guarded(tmp_path / "accounts.yml")
    enforced = {**tls(certificates), "tls_server_mode": "enforcing"}
    there: dict[str, Any] = {"bind_address": address, "clients": clients}
    for settings, missing in (
        ({}, "anyone could read and write.*may be unencrypted"),
        (accounts, "may be unencrypted"),
        ({**accounts, **tls(certificates)}, "tlsServerMode=enforcing"),
        (enforced, "aclEnable"),
    ):
        with pytest.raises(OptionError, match=missing):
            Protection.of(StoreConfig(**there, **settings))
        Protection.of(StoreConfig(**there, **settings, allow_unprotected=True))
        assert f"{address} can be reached from other machines" in caplog.text
        Protection.of(StoreConfig(**there, **settings, listen_port=-1))
    caplog.clear()
    assert Protection.of(StoreConfig(**there, **accounts, **enforced)).accounts
    context = Protection.of(StoreConfig(**there, **mutual_tls(certificates))).tls.context
    assert context is not None
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert not caplog.text


@pytest.mark.threat("Who may connect")
@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o620, 0o666])
def test_secrets_that_others_can_read_or_change_are_refused(
    tmp_path: Path, certificates: Certificates, mode: int
) -> None:
    accounts = guarded(tmp_path / "accounts.yml")
    (tmp_path / "accounts.yml").chmod(mode)
    with pytest.raises(OptionError, match="chmod 6"):
        Protection.of(StoreConfig(**accounts))
    mine = account_file(tmp_path / "mine")
    mine.chmod(mode)
    with pytest.raises(OptionError, match="chmod 6"):
        StoreClient("rmq://127.0.0.1:1", acl_file=mine)
    key = tmp_path / "key"
    key.write_text(Path(certificates.server_key).read_text())
    key.chmod(mode)
    settings = {**tls(certificates), "tls_server_key_path": str(key)}
    with pytest.raises(OptionError, match="chmod 6"):
        Protection.of(StoreConfig(**settings))
    with pytest.raises(OptionError, match="chmod 6"):
        StoreClient("rmqs://127.0.0.1:1", tls_cert=certificates.client_cert, tls_key=key)


def test_settings_that_do_not_fit(certificates: Certificates) -> None:
    cert, key = certificates.server_cert, certificates.server_key
    wrong: tuple[dict[str, Any], ...] = (
        {"tls_server_cert_path": cert},
        {"tls_server_key_path": key},
        {"tls_server_trust_cert_path": certificates.ca},
        {**tls(certificates), "tls_server_trust_cert_path": certificates.ca},
        {"tls_server_cert_path": key, "tls_server_key_path": key},
        {"tls_server_cert_path": cert, "tls_server_key_path": cert},
        {"tls_server_cert_path": "/nonexistent", "tls_server_key_path": key},
        {"tls_server_mode": "enforcing"},
        {"acl_enable": True},
        {"acl_enable": True, "acl_path": "/nonexistent"},
    )
    for settings in wrong:
        with pytest.raises(OptionError):
            Protection.of(StoreConfig(**settings))
    with pytest.raises(OptionError, match="rmqs://"):
        StoreClient("rmq://127.0.0.1:1", tls_ca=certificates.ca)
    with pytest.raises(OptionError, match="together"):
        StoreClient("rmqs://127.0.0.1:1", tls_cert=cert)
