"""A name server that talks TLS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from rmqstore_spark.errors import OptionError, ServiceError
from rmqstore_spark.namesrv.config import NamesrvConfig
from rmqstore_spark.namesrv.process import running
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.tls import client_context
from tests.namesrv.registering import registration
from tests.support.certificates import make_certificates

Config = Callable[..., NamesrvConfig]


@pytest.mark.parametrize("mode", ["permissive", "enforcing", "disabled"])
def test_brokers_register_as_the_mode_says(config: Config, tmp_path: Path, mode: str) -> None:
    given = make_certificates(tmp_path / "certificates")
    keys = {
        "tls_server_mode": mode,
        "tls_server_cert_path": given.server_cert,
        "tls_server_key_path": given.server_key,
    }

    async def register(address: str, tls: Any) -> bool:
        try:
            async with await RemotingClient.connect(address, tls=tls) as broker:
                await broker.ask_for(registration(["T"]))
        except ServiceError:
            return False
        return True

    async def test() -> None:
        async with running(config(**keys)) as address:
            assert await register(address, client_context(given.ca)) == (mode != "disabled")
            assert await register(address, None) == (mode != "enforcing")

    uvloop.run(test())


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
def test_certificates_that_are_missing_stop_the_start(config: Config, keys: Any) -> None:
    async def test() -> None:
        async with running(config(**keys)):
            pass

    with pytest.raises(OptionError, match=r"tls|/x cannot be read"):
        uvloop.run(test())
