"""Where a member listens for the others, and what its log says if anyone can come there."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqstore_spark.broker.acl.files import AccountFiles
from rmqstore_spark.broker.acl.gate import AccountGate
from rmqstore_spark.consensus.driver.group import MemberGroup
from rmqstore_spark.consensus.driver.protection import MemberProtection
from rmqstore_spark.engine.group.member_port import bound_member_port
from rmqstore_spark.server.member.config import MemberConfig
from tests.consensus.driver.members import GROUP, MemberProcess, addresses
from tests.support.accounts import guarded
from tests.support.certificates import make_certificates
from tests.support.processes.ports import free_port
from tests.support.waiting import eventually

OPEN = MemberProtection()
WARNING = "anyone who reaches it can change the log"


def listens_on(own: str, given: str = "", protection: MemberProtection = OPEN) -> str:
    group = MemberGroup.of("g", "n0", f"n0-{own}:{free_port()};n1-10.0.0.2:1")
    with bound_member_port(group, given, protection) as bound:
        return str(bound.getsockname()[0])


@pytest.mark.parametrize(
    ("own", "given", "found"),
    [
        ("127.0.0.1", "", "127.0.0.1"),
        ("127.0.1.1", "", "127.0.1.1"),
        ("localhost", "", "127.0.0.1"),
        ("[::1]", "", "::1"),
        ("box", "127.0.0.1", "127.0.0.1"),
    ],
)
def test_a_member_that_is_on_loopback_listens_there_alone(
    own: str, given: str, found: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert listens_on(own, given) == found
    assert not caplog.text


@pytest.mark.parametrize(
    ("own", "given"), [("10.0.0.1", ""), ("box", ""), ("0.0.0.0", ""), ("127.0.0.1", "0.0.0.0")]
)
def test_a_port_that_is_open_to_others_is_told(
    own: str, given: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert listens_on(own, given) == "0.0.0.0"
    assert WARNING in caplog.text
    assert "dLegerAclEnable=true" in caplog.text


@pytest.mark.parametrize("has_accounts", [True, False])
def test_a_port_with_accounts_or_certificates_is_not_told(
    tmp_path: Path, has_accounts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    keys = make_certificates(tmp_path)
    accounts = AccountFiles(guarded(tmp_path / "accounts.yml")["acl_path"])
    gate = AccountGate(accounts, {}) if has_accounts else None
    mode = "permissive" if has_accounts else "enforcing"
    config = MemberConfig(
        d_leger_tls_server_mode=mode,
        tls_server_cert_path=keys.server_cert,
        tls_server_key_path=keys.server_key,
        tls_server_trust_cert_path=keys.ca,
    )
    protection = MemberProtection.of(config, None)
    listens_on("10.0.0.1", protection=MemberProtection(protection.tls, gate=gate))
    assert not caplog.text


def test_a_member_that_only_votes_does_the_same(tmp_path: Path) -> None:
    for address, is_told in (("127.0.0.1", False), ("0.0.0.0", True)):
        folder = tmp_path / address
        folder.mkdir()
        with MemberProcess(folder, "n0", addresses(1), dLegerBindAddress=address) as member:
            eventually(lambda member=member: f"of {GROUP} on " in member.output)
            assert (WARNING in member.output) == is_told
