"""Replicas that all refuse a client are not waited for, if waiting cannot mend it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.client import StoreClient
from rmqstore_spark.client.masters import find_master
from rmqstore_spark.datasource.options.parsing import parse_sink_options
from rmqstore_spark.datasource.sink.masters import with_masters
from rmqstore_spark.errors import OptionError, RmqStoreError, ServiceError
from tests.consensus.driver.members import addresses
from tests.engine.group.stores import FAST, PATIENCE, StoreProcess
from tests.support.accounts import account_file, guarded
from tests.support.certificates import Certificates, make_certificates
from tests.support.processes.ports import free_port
from tests.support.waiting import eventually

FOREVER = 3600.0
"""Seconds for which a test does not wait: it would fail long before."""


def running(folder: Path, stack: ExitStack, count: int, **settings: Any) -> list[str]:
    """Start store processes; return their endpoints when each answers somehow."""
    members = addresses(3)
    stores = [
        stack.enter_context(StoreProcess(folder, me, members, **FAST, **settings))
        for me in list(members)[:count]
    ]
    for store in stores:
        eventually(lambda store=store: answers(store.endpoint), PATIENCE)
    return [store.endpoint for store in stores]


def answers(endpoint: str) -> bool:
    return "Nothing listens" not in str(failure(lambda: probe(endpoint).open(())))


def failure(act: Callable[[], object]) -> RmqStoreError | None:
    try:
        act()
    except RmqStoreError as error:
        return error
    return None


def probe(endpoint: str, **options: Any) -> StoreClient:
    return StoreClient(endpoint, timeout_s=5.0, retries=0, connect_s=5.0, **options)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def test_a_wrong_account_ends_the_search_for_a_leader(tmp_path: Path) -> None:
    accounts = guarded(tmp_path / "accounts.yml")
    wrong = account_file(tmp_path / "wrong.yml", secret="another-secret")
    settings = {"aclEnable": "true", "aclPath": accounts["acl_path"]}
    with ExitStack() as stack:
        asked = running(tmp_path, stack, 3, **settings)
        with pytest.raises(ServiceError) as raised:
            find_master(asked, partial(probe, acl_file=wrong), FOREVER)
        told = str(raised.value)
        assert told.startswith(f"The store process at {asked[0]} requires an account, or rejected")
        assert told.count("Set aclFile") == 1
        assert told.endswith(f"So it is at {asked[1]} and {asked[2]}.")
        # So do the sink, and the command.
        options = {"endpoint": "|".join(asked), "topic": "orders", "aclFile": str(wrong)}
        options |= {"requestTimeout": f"{FOREVER:.0f}s"}
        connection = parse_sink_options(options, streaming=False).target.connection
        with pytest.raises(ServiceError, match="requires an account"):
            with_masters(connection)
        command = [sys.executable, "-m", "rmqstore_spark.cli", "create-topic", "|".join(asked)]
        done = subprocess.run(
            [*command, "orders", "--acl-file", str(wrong)],
            capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 2
        assert done.stderr.strip() == f"rmqstore: {told}"


def test_a_replica_that_cannot_be_reached_is_waited_for(tmp_path: Path) -> None:
    """It may be the master, which starts again."""
    accounts = guarded(tmp_path / "accounts.yml")
    with ExitStack() as stack:
        asked = running(tmp_path, stack, 1, aclEnable="true", aclPath=accounts["acl_path"])
        asked.append(f"rmq://127.0.0.1:{free_port()}")
        with pytest.raises(ServiceError, match="No replica of a store takes writes") as raised:
            find_master(asked, probe, 0)
    assert raised.value.can_pass
    assert "requires an account" in str(raised.value)
    assert "Nothing listens" in str(raised.value)


def test_what_tls_refuses_ends_the_search(tmp_path: Path, certificates: Certificates) -> None:
    settings = {
        "tlsServerMode": "enforcing",
        "tlsServerCertPath": certificates.server_cert,
        "tlsServerKeyPath": certificates.server_key,
        "tlsServerTrustCertPath": certificates.ca,
    }
    with ExitStack() as stack:
        plain = running(tmp_path, stack, 2, **settings)
        secure = [endpoint.replace("rmq:", "rmqs:") for endpoint in plain]
        with pytest.raises(ServiceError, match=f"{plain[0]}: .* TLS only.* at {plain[1]}"):
            find_master(plain, probe, FOREVER)
        with pytest.raises(ServiceError, match="certificate verify failed"):
            find_master(secure, probe, FOREVER)
        with pytest.raises(ServiceError, match="alert certificate required"):
            find_master(secure, partial(probe, tls_ca=certificates.ca), FOREVER)


def test_options_that_no_client_takes_end_the_search() -> None:
    asked = ["rmq://127.0.0.1:1", "rmq://127.0.0.1:2"]
    with pytest.raises(OptionError, match="is not encrypted"):
        find_master(asked, partial(probe, tls_ca="missing.pem"), FOREVER)
