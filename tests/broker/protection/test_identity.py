"""A store process signs what it asks others, and talks TLS to them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.broker.protection import Protection
from rmqstore_spark.engine import StoreConfig
from rmqstore_spark.errors import OptionError, RmqStoreError
from rmqstore_spark.ha.master_broker import MasterBroker
from tests.broker.broker import broker, name_server
from tests.broker.protection.accounts import write_accounts
from tests.support.certificates import Certificates, make_certificates
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls") / "certificates")


def test_it_registers_over_tls(
    tmp_path: Path, given: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rmqstore_spark.broker")
    theirs: dict[str, Any] = {
        "tls_server_mode": "enforcing",
        "tls_server_cert_path": given.server_cert,
        "tls_server_key_path": given.server_key,
        "tls_server_trust_cert_path": given.ca,
    }
    ours = {
        "tls_enable": True,
        "tls_client_trust_cert_path": given.ca,
        "tls_client_cert_path": given.client_cert,
        "tls_client_key_path": given.client_key,
    }
    with name_server(tmp_path, **theirs) as address:
        with broker(tmp_path / "store", namesrv_addr=address, **ours):
            eventually(lambda: "The broker is registered with" in caplog.text)
        assert "could not" not in caplog.text
        with broker(tmp_path / "store", namesrv_addr=address):
            eventually(lambda: "could not register with" in caplog.text)


def test_a_slave_asks_the_broker_of_its_master(tmp_path: Path, given: Certificates) -> None:
    keys = tmp_path / "tools.yml"
    write_accounts(keys, "accessKey: rocketmq2\nsecretKey: 12345678\n")
    theirs = {
        "acl_enable": True,
        "acl_path": write_accounts(tmp_path / "plain_acl.yml"),
        "tls_server_mode": "enforcing",
        "tls_server_cert_path": given.server_cert,
        "tls_server_key_path": given.server_key,
    }
    with broker(tmp_path / "store", **theirs) as served:

        def begin(**ours: Any) -> int:
            config = StoreConfig(ha_master_remoting_address=served.address, **ours)
            return MasterBroker(config).log_begin()

        tls = {"tls_enable": True, "tls_client_trust_cert_path": given.ca}
        assert begin(**tls, acl_credentials_path=str(keys)) == 0
        with pytest.raises(RmqStoreError, match="No accessKey is configured"):
            begin(**tls)
        with pytest.raises(RmqStoreError):
            begin(acl_credentials_path=str(keys))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"tls_enable": True, "tls_client_cert_path": "/x"}, "need each other"),
        ({"tls_client_trust_cert_path": "/x"}, "need tlsEnable=true"),
        ({"tls_client_cert_path": "/x"}, "need tlsEnable=true"),
        ({"tls_enable": True, "tls_client_trust_cert_path": "/x"}, "/x could not be read"),
        (
            {"tls_enable": True, "tls_client_cert_path": "/x", "tls_client_key_path": "/y"},
            "/y cannot be read",
        ),
        ({"acl_credentials_path": "/x"}, "/x cannot be read"),
    ],
)
def test_files_that_are_missing_are_named(keys: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        Protection.of(StoreConfig(**keys))
