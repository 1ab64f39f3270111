"""Accounts: who may ask a broker what, and what is tried to get around that."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from rmqstore_spark.broker.core.administration import messages
from rmqstore_spark.engine import StoreConfig
from rmqstore_spark.errors import OptionError
from rmqstore_spark.remoting.access.signing import ACCESS_KEY, SIGNATURE, SessionCredentials
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import Served, batch, broker, heartbeat, message, pull, records_in
from tests.broker.protection.accounts import ADMIN, APP, RECORDED, ask, write_accounts
from tests.cli.processes import run
from tests.remoting.reading import read_frames
from tests.support.recordings import exchanges
from tests.support.waiting import eventually

_EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Served:  # type: ignore[misc]
    """A broker that asks for accounts."""
    folder = tmp_path_factory.mktemp("guarded")
    accounts = write_accounts(folder / "plain_acl.yml")
    with broker(folder / "store", acl_enable=True, acl_path=accounts) as served:
        for topic in ("RecAcl", "RecSend", "ReadOnly", "WriteOnly"):
            served.store.create_topic(topic, read_queue_nums=4)
        yield served


def refused(answer: Command, *words: str) -> None:
    """Check that an answer is RocketMQ's refusal, names something, and shows no secret."""
    assert answer.code == 1, answer
    assert (answer.remark or "").startswith(_EXCEPTION), answer
    assert all(word in (answer.remark or "") for word in words), answer
    assert "12345678" not in (answer.remark or "")


def to(code: int, **fields: object) -> Command:
    return Command(code, {name: str(value) for name, value in fields.items()})


@pytest.mark.threat("Accounts")
def test_recorded_requests_get_the_recorded_answers(
    guarded: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "_LONGEST_SECONDS", 60.0)  # on a starved machine
    asked = exchanges("raw-acl", "broker")

    async def work() -> list[Command]:
        async with await RemotingClient.connect(guarded.address, seconds=30) as client:
            return [await client.ask(read_frames(each.request.wire)[0], 30) for each in asked]

    for each, ours in zip(asked, asyncio.run(work()), strict=True):
        assert each.answer is not None
        code, theirs = each.request.header["code"], each.answer.header
        if code == RequestCode.SEND_BATCH_MESSAGE:  # a broker stores it: it looks at no batch
            refused(ours, "topic:RecSend", "RocketMQ")
        elif code == RequestCode.QUERY_MESSAGE:  # RocketMQ's clients sign what its broker does not
            assert ours.code in (0, 22), ours  # whether the index has the key yet
        else:
            assert ours.code == theirs["code"], (each.request.header, ours)
            if "AclException" in (theirs.get("remark") or ""):
                said = theirs["remark"].partition(", org.apache")[0]
                assert (ours.remark or "").startswith(said)


@pytest.mark.threat("Accounts")
@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (message(b"x", "RecSend"), ["topic:RecSend", "accessKey=RocketMQ needs PUB"]),
        (message(b"x", "ReadOnly"), ["topic:ReadOnly"]),
        (message(b"x", "recacl"), ["topic:recacl"]),
        (message(b"x", "%RETRY%closed"), ["group:closed"]),
        # The group of the producer says nothing about the group of the topic.
        (message(b"x", "%RETRY%closed", a="open"), ["group:closed"]),
        (message(b"x", "%DLQ%closed"), ["topic:%DLQ%closed"]),
        (batch([b"x"], topic="RecSend"), ["topic:RecSend"]),
        (batch([b"x"], topic="WriteOnly", b="RecSend"), ["topic:RecSend"]),
        (pull(0, "WriteOnly"), ["topic:WriteOnly", "needs SUB"]),
        (pull(0, "RecAcl", consumerGroup="closed"), ["group:closed"]),
        (pull(0, "%RETRY%closed"), ["group:closed"]),
        (pull(0, "SCHEDULE_TOPIC_XXXX"), ["topic:SCHEDULE_TOPIC_XXXX"]),
        (heartbeat("me", {"WriteOnly": "*"}), ["topic:WriteOnly"]),
        (heartbeat("me", {"RecAcl": "*"}, "closed"), ["group:closed"]),
        (heartbeat("me", {"%RETRY%closed": "*"}), ["group:closed"]),
        (to(35, clientID="me", consumerGroup="closed", producerGroup="p"), ["group:closed"]),
        (to(38, consumerGroup="closed"), ["group:closed"]),
        (to(203, consumerGroup="closed"), ["group:closed"]),
        (to(204, producerGroup="producers"), ["Need admin permission", "code=204"]),
        (to(14, consumerGroup="closed", topic="RecAcl", queueId=0), ["group:closed"]),
        (to(14, consumerGroup="open", topic="RecSend", queueId=0), ["topic:RecSend"]),
        (
            to(15, consumerGroup="open", topic="RecSend", queueId=0, commitOffset=1),
            ["topic:RecSend"],
        ),
        (to(30, topic="RecSend", queueId=0), ["topic:RecSend", "needs PUB or SUB"]),
        (to(202, topic="RecSend"), ["topic:RecSend"]),
        (to(36, offset=0, group="closed", delayLevel=0), ["group:closed"]),
        (to(36, offset=0, group="open", delayLevel=0, originTopic="RecSend"), ["topic:RecSend"]),
        (to(17, topic="T", readQueueNums=1, writeQueueNums=1, perm=6), ["code=17", "RocketMQ"]),
        (to(215, topic="RecAcl"), ["Need admin permission for request code=215"]),
        (to(26), ["Need admin permission for request code=26"]),
        (to(9999), ["Need admin permission for request code=9999"]),
    ],
)
def test_an_account_gets_no_further_than_its_rights(
    guarded: Served, request_: Command, words: list[str]
) -> None:
    (answer,) = ask(guarded, request_)
    refused(answer, *words)


@pytest.mark.threat("Accounts")
@pytest.mark.parametrize("code", [41, 42])
def test_queues_are_locked_by_those_who_may_read_them(guarded: Served, code: int) -> None:
    def locking(group: str, *topics: str) -> Command:
        queues = [{"brokerName": "broker-a", "queueId": 0, "topic": topic} for topic in topics]
        told = {"clientId": "me", "consumerGroup": group, "mqSet": queues}
        return Command(code, body=json.dumps(told).encode())

    allowed, group, topic = ask(
        guarded, locking("open", "RecAcl"), locking("closed"), locking("open", "RecAcl", "RecSend")
    )
    assert allowed.code == 0
    refused(group, "group:closed")
    refused(topic, "topic:RecSend")


@pytest.mark.threat("Accounts")
def test_what_an_account_may_do_works(guarded: Served) -> None:
    answers = ask(
        guarded,
        message(b"one", "RecAcl", 1),
        batch([b"two"], topic="RecAcl"),
        message(b"three", "WriteOnly"),
        heartbeat("me", {"RecAcl": "*", "%RETRY%open": "*"}, "open"),
        pull(0, "RecAcl", 1, consumerGroup="open"),
        message(b"four", "%RETRY%open"),
        to(38, consumerGroup="open"),
        to(30, topic="WriteOnly", queueId=0),
        to(35, clientID="me", consumerGroup="", producerGroup="p"),
    )
    assert [answer.code for answer in answers] == [0] * len(answers), answers
    assert len(records_in(answers[4].body)) >= 1
    created, topics, unknown = ask(
        guarded,
        to(17, topic="Made", readQueueNums=1, writeQueueNums=1, perm=6),
        to(21),
        to(9999),
        by=ADMIN,
    )
    assert (created.code, topics.code, unknown.code) == (0, 0, 3)


@pytest.mark.threat("Accounts")
def test_a_message_is_only_shown_to_those_who_may_read_its_topic(guarded: Served) -> None:
    def place(sent: Command) -> int:
        return int(sent.ext["msgId"][16:], 16)

    (secret,) = ask(guarded, message(b"secret", "RecSend"), by=ADMIN)
    (later,) = ask(guarded, message(b"secret", "RecSend", i="DELAY\x0118"), by=ADMIN)
    (own,) = ask(guarded, message(b"own", "RecAcl"))
    for sent in (secret, later):
        at = place(sent)
        view, back = ask(guarded, to(33, offset=at), to(36, offset=at, group="open", delayLevel=-1))
        refused(view, "topic:RecSend")
        refused(back, "topic:RecSend")
        assert ask(guarded, to(33, offset=at), by=ADMIN)[0].code == 0
    view, back = ask(
        guarded,
        to(33, offset=place(own)),
        to(36, offset=place(own), group="open", delayLevel=-1, originTopic="RecAcl"),
    )
    assert (view.code, back.code) == (0, 0)


@pytest.mark.threat("Accounts")
def test_the_gate_lets_nobody_name_a_message_that_is_yet_to_come(guarded: Served) -> None:
    ask(guarded, message(b"last", "RecAcl"))
    for at in (guarded.store.published_end, guarded.store.published_end + 1000):
        ends = to(
            37, producerGroup="producers", tranStateTableOffset=0, commitLogOffset=at,
            commitOrRollback=8,
        )  # fmt: skip
        back = to(36, offset=at, group="open", delayLevel=-1)
        for answer in ask(guarded, to(33, offset=at), back, ends):
            assert answer.code == 1
            assert answer.remark == f"there is no message at the offset {at}"
    (before,) = ask(guarded, to(33, offset=-1))
    assert "can not find message by the offset" in (before.remark or "")


@pytest.mark.threat("Accounts")
def test_signatures_that_are_wrong_are_refused(guarded: Served) -> None:
    request = message(b"body", "RecAcl")
    right = APP.signed(request)

    def changed(**fields: str) -> Command:
        return replace(right, ext={**right.ext, **fields})

    without = {name: value for name, value in right.ext.items() if name != SIGNATURE}
    tried = [
        (request, "No accessKey is configured"),
        (replace(right, ext=without), "Check signature failed for accessKey=RocketMQ"),
        (changed(Signature=""), "Check signature failed"),
        (changed(Signature=right.ext[SIGNATURE].lower()), "Check signature failed"),
        (changed(Signature="☃"), "Check signature failed"),
        (replace(right, body=b"other"), "Check signature failed"),
        (changed(e="1"), "Check signature failed"),
        (changed(b="RecSend"), "Check signature failed"),
        (changed(more="x"), "Check signature failed"),
        (changed(_UNIQUE_KEY_QUERY="x"), "Check signature failed"),  # only queries may have it
        (changed(AccessKey="rocketmq2"), "Check signature failed for accessKey=rocketmq2"),
        (changed(AccessKey="nobody-here"), "No acl config for nobody-here"),
        (changed(AccessKey="rocketmq"), "No acl config for rocketmq"),
        (changed(AccessKey=""), "No acl config for "),
        (SessionCredentials("RocketMQ", "1234567").signed(request), "Check signature failed"),
        (replace(right, ext={**without, "signature": "x", "accesskey": "x"}), "Check signature"),
    ]
    answers = ask(guarded, *(each for each, _ in tried), by=None)
    for (_, words), answer in zip(tried, answers, strict=True):
        refused(answer, words)
    assert ask(guarded, right, by=None)[0].code == 0


@pytest.mark.threat("Accounts")
def test_one_way_requests_are_checked_too(guarded: Served) -> None:
    ends = to(30, topic="RecSend", queueId=3)

    async def work() -> None:
        async with await RemotingClient.connect(guarded.address, seconds=30) as client:
            await client.tell(message(b"x", "RecSend", 3))
            await client.tell(APP.signed(message(b"x", "RecSend", 3)))
            await client.tell(APP.signed(batch([b"x"], topic="RecSend", e="3")))
            await client.ask(ADMIN.signed(ends), 30)

    asyncio.run(work())
    guarded.store.flush()
    assert ask(guarded, ends, by=ADMIN)[0].ext["offset"] == "0"


def test_accounts_are_read_again_when_their_file_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "plain_acl.yml"
    write_accounts(path)
    with broker(tmp_path / "store", acl_enable=True, acl_path=str(path)) as served:

        def code(by: SessionCredentials) -> int:
            return ask(served, message(b"x", "orders"), by=by)[0].code

        assert code(APP) == 1
        write_accounts(path, RECORDED.replace("RecAcl=", "orders="))
        eventually(lambda: code(APP) == 0)
        write_accounts(path, RECORDED.replace("RecAcl=PUB|SUB", "orders=PUBB"))
        eventually(lambda: "The accounts stay as they were" in caplog.text)
        assert f"{path}, line 11: topicPerms must have one of the rights DENY, PUB" in caplog.text
        assert code(APP) == 0
        path.unlink()
        eventually(lambda: "cannot be read" in caplog.text)
        assert code(APP) == 0
        write_accounts(path, RECORDED.replace("12345678", "other-secret"))
        eventually(lambda: code(APP) == 1)
        assert code(SessionCredentials("rocketmq2", "other-secret")) == 0
    assert "other-secret" not in caplog.text


def test_more_accounts_are_in_a_folder(tmp_path: Path) -> None:
    more = """{accounts: [{accessKey: another, secretKey: "87654321", defaultTopicPerm: PUB}]}"""
    (tmp_path / "conf" / "acl" / "team").mkdir(parents=True)
    write_accounts(tmp_path / "conf" / "plain_acl.yml")
    write_accounts(tmp_path / "conf" / "acl" / "team" / "b.yaml", more)
    settings = {"acl_enable": True, "acl_path": str(tmp_path / "conf")}
    with broker(tmp_path / "store", **settings) as served:
        (answer,) = ask(served, message(b"x", "any"), by=SessionCredentials("another", "87654321"))
        assert answer.code == 0
        assert ask(served, message(b"x", "RecAcl"))[0].code == 0


@pytest.mark.parametrize("white", ["globalWhiteRemoteAddresses", "whiteRemoteAddress"])
def test_addresses_that_need_no_signature(tmp_path: Path, white: str) -> None:
    if white == "whiteRemoteAddress":
        text = RECORDED.replace("whiteRemoteAddress:\n", "whiteRemoteAddress: 127.0.0.{1,2}\n")
    else:
        text = RECORDED.replace("10.10.103.*", "127.0-3.*")
    path = write_accounts(tmp_path / "plain_acl.yml", text)
    request = message(b"x", "any")
    with broker(tmp_path / "store", acl_enable=True, acl_path=path) as served:
        named = replace(request, ext={**request.ext, ACCESS_KEY: "RocketMQ"})
        assert ask(served, named, by=None)[0].code == 0
        is_open = white == "globalWhiteRemoteAddresses"
        assert ask(served, request, by=None)[0].code == (0 if is_open else 1)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"acl_path": ""}, "aclEnable=true needs aclPath"),
        ({"acl_path": "/nowhere/plain_acl.yml"}, "/nowhere/plain_acl.yml cannot be read"),
        ({"acl_credentials_path": "/nowhere/tools.yml"}, "/nowhere/tools.yml cannot be read"),
    ],
)
def test_what_is_missing_stops_the_start(
    tmp_path: Path, settings: dict[str, str], text: str
) -> None:
    path = write_accounts(tmp_path / "plain_acl.yml")
    given = {"acl_enable": True, "acl_path": path, **settings}
    with pytest.raises(OptionError, match=text), broker(tmp_path / "store", **given):
        pass


def test_a_file_that_others_can_read_stops_the_start(tmp_path: Path) -> None:
    path = write_accounts(tmp_path / "plain_acl.yml")
    Path(path).chmod(0o644)
    given = {"acl_enable": True, "acl_path": path}
    with (
        pytest.raises(OptionError, match=r"is accessible to others .* chmod 600"),
        broker(tmp_path / "store", **given),
    ):
        pass


def test_rocketmqs_key_is_heeded() -> None:
    config = StoreConfig().with_overrides({"aclEnable": "true", "aclPath": "/etc/plain_acl.yml"})
    assert (config.acl_enable, config.acl_path) == (True, "/etc/plain_acl.yml")


def test_wrong_accounts_stop_the_process_before_it_opens_the_store(tmp_path: Path) -> None:
    path = write_accounts(tmp_path / "plain_acl.yml", "accounts:\n- accessKey: only-a-key\n")
    settings = ("--set=aclEnable=true", f"--set=aclPath={path}")
    done = run("serve", "--store", tmp_path / "store", "--port", 0, *settings)
    assert done.returncode == 2
    assert done.stderr == f"rmqstore: {path}, line 2: accounts has no secretKey.\n"
    assert not (tmp_path / "store").exists()
