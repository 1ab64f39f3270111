"""Members with accounts and TLS, as processes: who may ask them, and whom they ask."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.consensus.driver.protection import request_to
from rmqstore_spark.consensus.driver.wire import DLedgerRequest
from rmqstore_spark.consensus.messages import MemberCode
from rmqstore_spark.errors import ServiceError
from rmqstore_spark.remoting.access.identity import ClientIdentity, IdentityFiles, read_credentials
from rmqstore_spark.remoting.access.signing import SessionCredentials
from rmqstore_spark.remoting.codec.codes import ResponseCode
from tests.broker.broker import ask
from tests.consensus.driver.members import (
    GROUP,
    GroupClient,
    MemberProcess,
    addresses,
    logs_until,
    record,
)
from tests.support.accounts import KEY, SECRET, account_file, guarded
from tests.support.certificates import Certificates, make_certificates
from tests.support.waiting import eventually

READER = "reads-only"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def running() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def accounts(folder: Path) -> dict[str, Any]:
    """Keys of a member that signs, and knows an administrator and somebody who may read."""
    reader = {"accessKey": READER, "defaultTopicPerm": "SUB"}
    files = guarded(folder / "accounts.yml", {"admin": True}, reader)
    return {
        "aclPath": files["acl_path"],
        "aclCredentialsPath": account_file(folder / "own.yml"),
        "dLegerAclEnable": "true",
    }


def shown(certificates: Certificates) -> dict[str, Any]:
    """Keys of a member that has a certificate, and checks that of others."""
    return {
        "tlsServerCertPath": certificates.server_cert,
        "tlsServerKeyPath": certificates.server_key,
        "tlsClientTrustCertPath": certificates.ca,
    }


def identity(folder: Path, certificates: Certificates | None = None) -> ClientIdentity:
    """The administrator; over TLS if there are certificates."""
    files = IdentityFiles(
        str(account_file(folder / "client.yml")),
        certificates is not None,
        certificates.ca if certificates else "",
        certificates.client_cert if certificates else "",
        certificates.client_key if certificates else "",
    )
    return ClientIdentity.of(files)


def begun(
    running: ExitStack, folder: Path, members: dict[str, str], **settings: Any
) -> dict[str, MemberProcess]:
    """All members, when they may vote."""
    made = {
        me: running.enter_context(
            MemberProcess(folder, me, members, dLegerHeartbeatInterval=200, **settings)
        )
        for me in members
    }
    eventually(lambda: all(member.may_vote for member in made.values()), 60)
    return made


@pytest.mark.threat("Members of a group")
def test_members_sign_and_show_certificates_and_survive_their_leader(
    tmp_path: Path, certificates: Certificates, running: ExitStack
) -> None:
    members = addresses(3)
    group = begun(
        running, tmp_path, members, **accounts(tmp_path), **shown(certificates),
        dLegerTlsEnable="true", dLegerTlsServerMode="enforcing",
        tlsServerTrustCertPath=certificates.ca, tlsClientCertPath=certificates.client_cert,
        tlsClientKeyPath=certificates.client_key,
    )  # fmt: skip
    who = identity(tmp_path, certificates)
    client = GroupClient(members, identity=who)
    client.append(*(record(f"first {n}", n) for n in range(5)))
    leader = client.leader()
    assert leader is not None
    group[leader].kill()
    client.without(leader).append(record("second", 5))
    group[leader].start()
    last = client.append(record("last", 6))[0]
    eventually(lambda: all(member.committed >= last for member in group.values()), 60)
    with pytest.raises(ServiceError):
        GroupClient(members).ask("n0", DLedgerRequest.METADATA)  # plain
    assert "did not use TLS" in group["n0"].output
    without = ClientIdentity(who.credentials, identity(tmp_path, certificates._replace(
        client_cert="", client_key="")).tls)  # fmt: skip
    with pytest.raises(ServiceError):
        GroupClient(members, identity=without).ask("n1", DLedgerRequest.METADATA)
    assert len(logs_until(group, last)) == 1


@pytest.mark.threat("Members of a group")
def test_who_is_not_verified_changes_nothing(tmp_path: Path, running: ExitStack) -> None:
    members = addresses(3)
    group = begun(running, tmp_path, members, **accounts(tmp_path))
    who = identity(tmp_path)
    client = GroupClient(members, identity=who)
    last = client.append(record("one"))[0]
    eventually(lambda: all(member.committed >= last for member in group.values()), 60)
    leader = client.leader()
    assert leader is not None
    victim, other = (me for me in members if me != leader)
    folder = group[victim].store / f"dledger-{victim}"
    before = (folder / "currterm").read_bytes(), group[victim].data
    term = int(client.ask(victim, DLedgerRequest.METADATA)["term"]) + 1000
    common = {
        "group": GROUP, "remoteId": victim, "localId": other, "leaderId": other, "term": term,
    }  # fmt: skip
    vote = {**common, "ledgerEndIndex": 1 << 40, "ledgerEndTerm": term}
    entry = {"magic": 1, "size": 53, "index": 0, "term": term, "pos": 0, "body": "aGVsbG8="}
    attacks: list[tuple[int, dict[str, Any]]] = [
        (DLedgerRequest.VOTE, vote),
        (DLedgerRequest.HEART_BEAT, common),
        (DLedgerRequest.PUSH, {**common, "type": "TRUNCATE", "entry": entry}),
        (DLedgerRequest.PUSH, {**common, "type": "COMMIT", "commitIndex": 1 << 40}),
        (DLedgerRequest.LEADERSHIP_TRANSFER, {**common, "transferId": leader,
                                              "transfereeId": victim}),
        (DLedgerRequest.APPEND, {**common, "body": "aGVsbG8="}),
        (DLedgerRequest.GET, {**common, "beginIndex": 0}),
        (DLedgerRequest.METADATA, common),
    ]  # fmt: skip
    strangers = [
        ClientIdentity(),
        ClientIdentity(SessionCredentials(KEY, "a-wrong-secret")),
        ClientIdentity(SessionCredentials("somebody-else", SECRET)),
        ClientIdentity(SessionCredentials(READER, SECRET)),
    ]
    for stranger in strangers:
        for code, fields in attacks:
            request = request_to(code, json.dumps(fields).encode())
            (answer,) = ask(members[victim], request, identity=stranger)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "AclException" in str(answer.remark)
            assert answer.body == b""
    # What is signed counts for the request that it was signed for.
    assert who.credentials is not None
    heard = who.credentials.signed(request_to(DLedgerRequest.VOTE, json.dumps(vote).encode()))
    heard.code = DLedgerRequest.HEART_BEAT
    (answer,) = ask(members[victim], heard)
    assert "not that of a request with this code" in str(answer.remark)
    assert client.ask(victim, DLedgerRequest.METADATA)["term"] == term - 1000
    assert ((folder / "currterm").read_bytes(), group[victim].data) == before
    refused = "may not ask this member: with dLegerAclEnable"
    eventually(lambda: refused in group[victim].output)  # it answers first
    # A member that has an account raises it with the same vote.
    client.ask(victim, DLedgerRequest.VOTE, **vote)
    eventually(lambda: int(client.ask(victim, DLedgerRequest.METADATA)["term"]) >= term, 60)


def test_a_member_with_a_wrong_account_is_told_and_joins_with_the_right_one(
    tmp_path: Path, running: ExitStack
) -> None:
    members = addresses(3)
    right = {**accounts(tmp_path), "dLegerHeartbeatInterval": 200}
    wrong = {**right, "aclCredentialsPath": account_file(tmp_path / "wrong.yml", secret="x" * 9)}
    for me in ("n0", "n1"):
        running.enter_context(MemberProcess(tmp_path, me, members, **right))
    third = running.enter_context(MemberProcess(tmp_path, "n2", members, **wrong))
    advice = "aclCredentialsPath here must have one of its aclPath, with admin: true"
    eventually(lambda: advice in third.output, 60)
    assert "Check signature failed" in third.output
    others = [tmp_path / f"{me}.out" for me in ("n0", "n1")]
    eventually(lambda: any("Give it aclCredentialsPath" in path.read_text() for path in others), 60)
    account_file(tmp_path / "wrong.yml")
    third.kill()
    third.start()
    last = GroupClient(members, identity=identity(tmp_path)).append(record("one"))[0]
    eventually(lambda: third.committed >= last, 60)


def test_a_new_account_replaces_another_without_a_stop(tmp_path: Path, running: ExitStack) -> None:
    """All know both, then each signs with the new one: at no time is a member without a vote."""
    members = addresses(3)
    group = begun(running, tmp_path, members, **accounts(tmp_path))
    new: dict[str, Any] = {
        "accessKey": "their-second",
        "secretKey": "5ecre7-5ecre7-new",
        "admin": True,
    }
    guarded(tmp_path / "accounts.yml", {"admin": True}, new)
    account_file(tmp_path / "own.yml", new["accessKey"], new["secretKey"])
    later = ClientIdentity(read_credentials(tmp_path / "own.yml"))
    client = GroupClient(members, identity=later)

    def is_known(me: str) -> bool:
        request = request_to(DLedgerRequest.METADATA, b"{}")
        return ask(members[me], request, identity=later)[0].code == MemberCode.SUCCESS

    for me in members:
        eventually(lambda me=me: is_known(me))
    for me, member in group.items():
        member.stop()
        member.start()
        last = client.append(record(f"after {me}"))[0]
        eventually(lambda member=member, last=last: member.committed >= last, 60)
    guarded(tmp_path / "accounts.yml", new)
    old = ClientIdentity(SessionCredentials(KEY, SECRET))

    def is_gone(me: str) -> bool:
        request = request_to(DLedgerRequest.METADATA, b"{}")
        return ask(members[me], request, identity=old)[0].code == ResponseCode.SYSTEM_ERROR

    for me in members:
        eventually(lambda me=me: is_gone(me))
    last = client.append(record("last"))[0]
    eventually(lambda: all(member.committed >= last for member in group.values()), 60)


@pytest.mark.threat("Members of a group")
def test_a_certificate_of_another_authority_is_refused(
    tmp_path: Path, certificates: Certificates, running: ExitStack
) -> None:
    members = addresses(3)
    settings = {"dLegerTlsEnable": "true", "dLegerHeartbeatInterval": 200}
    for me in ("n0", "n1"):
        running.enter_context(
            MemberProcess(tmp_path, me, members, **settings, **shown(certificates))
        )
    others = make_certificates(tmp_path / "others")
    third = running.enter_context(
        MemberProcess(tmp_path, "n2", members, **settings, **shown(others))
    )
    eventually(lambda: "did not begin a TLS session" in third.output, 60)
    assert "tlsClientTrustCertPath here must verify that" in third.output
    first = tmp_path / "n0.out"
    eventually(lambda: "of n2 is not allowed: 127.0.0.1" in first.read_text(), 60)
    assert "did not begin a TLS session" in first.read_text()
    assert not third.may_vote
    third.kill()
    third = running.enter_context(
        MemberProcess(tmp_path, "n2", members, **settings, **shown(certificates))
    )
    who = ClientIdentity(None, identity(tmp_path, certificates).tls)
    last = GroupClient(members, identity=who).append(record("one"))[0]
    eventually(lambda: third.committed >= last, 60)


def test_a_group_changes_to_accounts_and_tls_member_by_member(
    tmp_path: Path, certificates: Certificates, running: ExitStack
) -> None:
    """All three are restarted, one after the other, three times; a quorum always runs."""
    members = addresses(3)
    group = begun(running, tmp_path, members)
    all_of_it = {**accounts(tmp_path), **shown(certificates)}
    can = {**all_of_it, "dLegerAclEnable": "false"}
    does = {**all_of_it, "dLegerTlsEnable": "true"}
    must = {**does, "dLegerTlsServerMode": "enforcing"}
    number = last = 0
    who = identity(tmp_path)
    for settings in (can, does, must):
        for me in members:
            number += 1
            group[me].stop()
            client = GroupClient(members, identity=who)
            client.without(me).append(record(f"without {me}", number))
            group[me] = running.enter_context(
                MemberProcess(tmp_path, me, members, dLegerHeartbeatInterval=200, **settings)
            )
            if settings is must:
                who = identity(tmp_path, certificates)
            last = GroupClient(members, identity=who).append(record(f"with {me}", number))[0]
            eventually(lambda me=me, last=last: group[me].committed >= last, 60)
    eventually(lambda: all(member.committed >= last for member in group.values()), 60)
    assert len(logs_until(group, last)) == 1


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"dLegerAclEnable": "true"}, "dLegerAclEnable=true needs aclPath"),
        ({"dLegerAclEnable": "true", "aclPath": "{accounts}"}, "needs aclCredentialsPath"),
        ({"dLegerTlsServerMode": "enforcing"}, "need tlsServerCertPath and"),
        ({"tlsServerCertPath": "x.pem"}, "tlsServerCertPath and tlsServerKeyPath need each other"),
        ({"dLegerTlsEnable": "true", "tlsClientTrustCertPath": "/none.pem"}, "could not be read"),
    ],
)
def test_what_cannot_protect_stops_the_start(
    tmp_path: Path, keys: dict[str, str], text: str
) -> None:
    path = guarded(tmp_path / "accounts.yml")["acl_path"]
    given = {key: value.format(accounts=path) for key, value in keys.items()}
    with MemberProcess(tmp_path, "n0", addresses(1), **given) as member:
        assert member.process.wait() != 0
        assert text in member.output


def test_a_plain_member_learns_that_the_others_may_want_tls(
    tmp_path: Path, certificates: Certificates, running: ExitStack
) -> None:
    members = addresses(2)
    settings = {"dLegerHeartbeatInterval": 200}
    running.enter_context(
        MemberProcess(
            tmp_path, "n0", members, dLegerTlsServerMode="enforcing", **settings,
            tlsServerCertPath=certificates.server_cert, tlsServerKeyPath=certificates.server_key,
        )
    )  # fmt: skip
    plain = running.enter_context(MemberProcess(tmp_path, "n1", members, **settings))
    told = "It may accept only TLS connections. Then dLegerTlsEnable=true is needed here."
    assert eventually(lambda: told in plain.output, 60)
