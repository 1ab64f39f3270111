"""What an account may do over the protocol of Spark and the command."""

from __future__ import annotations

import logging
import pickle
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmqstore_spark.base.types import CommitRequest, WriterId
from rmqstore_spark.client import StoreClient
from rmqstore_spark.errors import FrameError, OptionError, RefusedError, ServiceError
from rmqstore_spark.remoting.access.identity import read_credentials
from rmqstore_spark.remoting.access.signing import SecretKey
from rmqstore_spark.wire.protocol import Code, fingerprint, login_answer
from tests.support.accounts import KEY, SECRET, account_file, guarded
from tests.support.certificates import Certificates, make_certificates
from tests.support.processes.plainclient import PlainClient, request
from tests.support.processes.serving import Served, block_of, eventually, served

Work = Callable[[StoreClient], object]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


ADMIN = {"accessKey": "administrator", "secretKey": "admins-secret-1", "admin": True}


@contextmanager
def store_with(tmp_path: Path, **rights: Any) -> Iterator[tuple[Served, StoreClient]]:
    """A store with topics, messages and some accounts; a client with one of these rights."""
    accounts = guarded(tmp_path / "accounts.yml", rights, ADMIN)
    with served(tmp_path / "store", **accounts) as here:
        for topic in ("mine", "other"):
            here.store.create_topic(topic, write_queue_nums=1)
            assert here.store.put(block_of([b"a"], topic)).ok
        here.store.flush()
        with StoreClient(here.endpoint, acl_file=account_file(tmp_path / "mine")) as client:
            yield here, client


def put(topic: str) -> Work:
    def work(client: StoreClient) -> object:
        with client.put_stream() as stream:
            told = stream.put(block_of([b"a"], topic))
        if not told.is_ok:
            raise RefusedError(told.remark, told.status)
        return told

    return work


def stage(topic: str) -> Work:
    def work(client: StoreClient) -> object:
        with client.stage_stream() as stream:
            stream.send(block_of([b"a"], topic))
            stages = (stream.finish(),)
        return client.commit(CommitRequest(WriterId("stream", "q", 0), stages))

    return work


def half(topic: str) -> Work:
    def work(client: StoreClient) -> object:
        columns = {
            "topic": pa.array([topic]), "body": pa.array([b"a"]),
            "queueId": pa.array([0], pa.int64()),
        }  # fmt: skip
        return client.producer("producers").put(columns)

    return work


def raw(code: Code, **body: Any) -> Work:
    def work(client: StoreClient) -> object:
        with PlainClient(str(client.endpoint), SECRET) as peer:
            answer = peer.ask(code, body)
        if answer.status:
            raise RefusedError(answer.remark, answer.status)
        return answer

    return work


READS = {
    "info": raw(Code.INFO, path="checkpoint"),
    "walk": raw(Code.WALK, path="", depth=1),
    "read": raw(Code.READ, paths=["checkpoint"], counts=[1], offsets=[0], lengths=[8]),
}
ADMINISTERS: dict[str, Work] = {
    "create": lambda client: client.create_topic("new"),
    "delete": lambda client: client.delete_topic("mine"),
    "expire": lambda client: client.expire(1, remove=True),
    "promote": lambda client: client.promote(),
    "demote": lambda client: client.demote("127.0.0.1:1"),
    "stop": lambda client: client.stop(),
}
WRITES: dict[str, Callable[[str], Work]] = {"put": put, "stage": stage, "half": half}


def is_refused(client: StoreClient, work: Work) -> bool:
    """Whether something is refused because of the account, and not for anything else."""
    try:
        work(client)
    except RefusedError as error:
        if error.status == "NO_PERMISSION" and "lacks" in str(error):
            return True
        return "is not an administrator" in str(error)
    return False


@pytest.mark.threat("Who may connect")
@pytest.mark.parametrize("way", WRITES)
def test_messages_need_pub_of_their_topic(tmp_path: Path, way: str) -> None:
    with store_with(tmp_path, topicPerms=["mine=PUB", "other=SUB"]) as (here, client):
        before = here.store.published_end
        assert is_refused(client, WRITES[way]("other"))
        assert is_refused(client, WRITES[way]("unknown"))
        assert here.store.published_end == before
        assert "unknown" not in here.store.topics
        assert not is_refused(client, WRITES[way]("mine"))
        assert here.store.published_end > before


@pytest.mark.threat("Who may connect")
def test_one_wrong_topic_among_blocks_is_refused_alone(tmp_path: Path) -> None:
    with (
        store_with(tmp_path, topicPerms=["mine=PUB"]) as (here, _),
        PlainClient(here.endpoint, SECRET) as peer,
    ):
        peer.begin(op="put")
        mine, other = (block_of([b"a"], topic).tobytes() for topic in ("mine", "other"))
        for number, block in enumerate((mine, other, mine)):
            peer.send(request(Code.BLOCK, block, number))
        told = [peer.answer().acknowledged for _ in range(3)]
        assert told == ["PUT_OK", "NO_PERMISSION", "PUT_OK"]
        assert here.store.stats()["putMessages"] == 4


@pytest.mark.threat("Who may connect")
@pytest.mark.parametrize("what", READS)
def test_files_need_sub_of_all_topics(tmp_path: Path, what: str) -> None:
    """They hold the messages of all."""
    cases: list[tuple[dict[str, Any], bool]] = [
        ({"defaultTopicPerm": "SUB"}, True),
        ({"defaultTopicPerm": "PUB|SUB", "topicPerms": ["mine=SUB"]}, True),
        ({"admin": True}, True),
        ({"defaultTopicPerm": "SUB", "topicPerms": ["other=DENY"]}, False),
        ({"defaultTopicPerm": "PUB"}, False),
        ({"topicPerms": ["mine=SUB", "other=SUB"]}, False),
        ({"admin": True, "topicPerms": ["mine=SUB"]}, False),
    ]
    for number, (rights, may) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        with store_with(folder, **rights) as (_, client):
            assert is_refused(client, READS[what]) is not may, rights


@pytest.mark.threat("Who may connect")
@pytest.mark.parametrize("what", ADMINISTERS)
def test_administration_needs_an_administrator(tmp_path: Path, what: str) -> None:
    with store_with(tmp_path, defaultTopicPerm="PUB|SUB", defaultGroupPerm="SUB") as (here, client):
        assert is_refused(client, ADMINISTERS[what])
        assert not here.stopped.is_set()
        assert "new" not in here.store.topics
        assert "mine" in here.store.topics
        admins = account_file(tmp_path / "admins", "administrator", "admins-secret-1")
        with StoreClient(here.endpoint, acl_file=admins) as admin:
            assert not is_refused(admin, ADMINISTERS[what])


@pytest.mark.threat("Who may connect")
def test_queries_and_progress_need_sub(tmp_path: Path) -> None:
    with store_with(tmp_path, topicPerms=["mine=SUB"], groupPerms=["lake=SUB"]) as (_, client):
        assert not is_refused(client, lambda c: c.query("mine", "key"))
        assert is_refused(client, lambda c: c.query("other", "key"))
        assert client.offsets(["mine"]).queues["mine"]
        assert is_refused(client, lambda c: c.offsets(["other"]))
        assert is_refused(client, lambda c: c.offsets())
        assert client.commit_offsets("lake", {"mine": {0: 1}}) is not None
        assert is_refused(client, lambda c: c.commit_offsets("lake", {"other": {0: 1}}))
        assert is_refused(client, lambda c: c.commit_offsets("else", {"mine": {0: 1}}))


@pytest.mark.threat("Who may connect")
def test_half_messages_are_shown_to_who_may_send_all(tmp_path: Path) -> None:
    checks = raw(Code.TRANSACTION_CHECKS, group="producers", most=10)
    ends = raw(
        Code.END_TRANSACTIONS, group="producers", queueOffsets=[], physicalOffsets=[], isCommit=True
    )
    cases: list[tuple[dict[str, Any], bool]] = [
        ({"defaultTopicPerm": "PUB"}, True), ({"topicPerms": ["mine=PUB"]}, False),
    ]  # fmt: skip
    for rights, may in cases:
        folder = tmp_path / str(may)
        folder.mkdir()
        with store_with(folder, **rights) as (_, client):
            assert [is_refused(client, work) for work in (checks, ends)] == [not may] * 2


@pytest.mark.threat("Who may connect")
def test_every_request_needs_a_login(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    right = account_file(tmp_path / "right")
    with served(tmp_path / "store", **guarded(tmp_path / "accounts.yml")) as here:
        with StoreClient(here.endpoint, acl_file=right) as client:
            assert client.topics() == {}
            with client.put_stream() as stream:
                assert stream.put(block_of([b"a"])).is_ok
        wrong = account_file(tmp_path / "wrong", secret=SECRET.upper())
        stranger = account_file(tmp_path / "stranger", key="stranger")
        for given in (None, wrong, stranger):
            with StoreClient(here.endpoint, acl_file=given, retries=0) as client:
                with pytest.raises(ServiceError, match="aclFile") as failure:
                    client.stop()
                assert SECRET.lower() not in str(failure.value).lower()
                with pytest.raises(ServiceError, match="aclFile"):
                    client.put_stream().put(block_of([b"a"]))
        for code in set(Code) - {Code.LOGIN}:
            with PlainClient(here.endpoint) as peer:
                assert peer.ask(code, b"{}").status == "UNAUTHENTICATED"
        assert not here.stopped.is_set()
        assert here.store.stats()["putMessages"] == 1
    assert SECRET.lower() not in caplog.text.lower()


@pytest.mark.threat("Who may connect")
def test_a_login_counts_for_its_own_connection_and_challenge(tmp_path: Path) -> None:
    with served(tmp_path / "store", **guarded(tmp_path / "accounts.yml")) as here:
        with PlainClient(here.endpoint) as one, PlainClient(here.endpoint) as two:
            first, second = (
                peer.ask(Code.LOGIN, extFields={"AccessKey": KEY}).body for peer in (one, two)
            )
            assert len(first) == 32
            assert first != second
            heard = one.proof(SECRET, first)
            assert two.ask(Code.LOGIN, heard, extFields={"AccessKey": KEY}).status
            assert not one.ask(Code.LOGIN, heard, extFields={"AccessKey": KEY}).status
            # A challenge is answered once.
            assert one.ask(Code.LOGIN, heard, extFields={"AccessKey": KEY}).status
        # What signs a request of RocketMQ's clients is not a login.
        with PlainClient(here.endpoint) as peer:
            challenge = peer.ask(Code.LOGIN, extFields={"AccessKey": KEY}).body
            signed = SecretKey(SECRET).signature({}, challenge).encode()
            assert peer.ask(Code.LOGIN, signed, extFields={"AccessKey": KEY}).status


@pytest.mark.threat("Accounts")
def test_the_last_login_of_a_connection_counts(tmp_path: Path) -> None:
    with store_with(tmp_path) as (here, _), PlainClient(here.endpoint) as peer:

        def creates(name: str) -> str:
            settings = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
            return peer.ask(Code.CREATE_TOPIC, {"name": name, **settings}).status

        assert not peer.log_in("admins-secret-1", "administrator").status
        assert not creates("one")
        assert not peer.log_in(SECRET).status
        assert creates("two") == "NO_PERMISSION"
        assert not peer.log_in("admins-secret-1", "administrator").status
        assert not creates("three")


@pytest.mark.threat("Accounts")
def test_a_right_that_is_lost_after_staging_is_missing_at_the_commit(tmp_path: Path) -> None:
    with store_with(tmp_path, topicPerms=["mine=PUB"]) as (here, client):
        with client.stage_stream() as stream:
            stream.send(block_of([b"a"], "mine"))
            stages = (stream.finish(),)
        guarded(tmp_path / "accounts.yml", {"topicPerms": ["mine=DENY"]}, ADMIN)
        request = CommitRequest(WriterId("stream", "q", 0), stages)
        eventually(lambda: is_refused(client, put("mine")))
        before = here.store.published_end
        assert is_refused(client, lambda c: c.commit(request))
        assert here.store.published_end == before


@pytest.mark.threat("Accounts")
def test_figures_and_flushes_are_not_for_everybody(tmp_path: Path) -> None:
    with store_with(tmp_path, topicPerms=["mine=PUB|SUB"]) as (_, client):
        assert is_refused(client, lambda c: c.stats())
        assert is_refused(client, lambda c: c.flush())


@pytest.mark.threat("Accounts")
def test_accounts_in_the_store_are_not_given_out(tmp_path: Path) -> None:
    (tmp_path / "store" / "config").mkdir(parents=True)
    path = tmp_path / "store" / "config" / "plain_acl.yml"
    with (
        served(tmp_path / "store", **guarded(path)) as here,
        PlainClient(here.endpoint, SECRET) as peer,
    ):
        here.store.create_topic("mine")
        here.store.flush()
        listed = peer.ask(Code.WALK, {"path": "config"}).json()["entries"]
        assert not [entry for entry in listed if "plain_acl" in entry["path"]]
        asked = {"paths": ["config/plain_acl.yml"], "counts": [1], "offsets": [0], "lengths": [9]}
        assert peer.ask(Code.READ, asked).status == "NOT_FOUND"


@pytest.mark.threat("Accounts")
def test_retry_topics_belong_to_their_groups(tmp_path: Path) -> None:
    rights = {"defaultTopicPerm": "SUB", "groupPerms": ["mine=SUB", "closed=DENY"]}
    with store_with(tmp_path, **rights) as (_, client):
        assert not is_refused(client, lambda c: c.offsets(["%RETRY%mine"]))
        assert is_refused(client, lambda c: c.offsets(["%RETRY%closed"]))
        assert is_refused(client, READS["walk"])  # the log holds what was sent back by all groups


@pytest.mark.threat("Accounts")
def test_a_login_counts_for_the_server_that_was_found(
    tmp_path: Path, certificates: Certificates
) -> None:
    """Who passes a challenge on to a client gets an answer that counts for himself alone."""
    tls = {
        "tls_server_cert_path": certificates.server_cert,
        "tls_server_key_path": certificates.server_key,
    }
    with served(tmp_path / "store", **guarded(tmp_path / "accounts.yml"), **tls) as here:
        context = ssl.create_default_context(cafile=certificates.ca)
        with PlainClient(here.endpoint, tls=context) as peer:
            challenge = peer.ask(Code.LOGIN, extFields={"AccessKey": KEY}).body
            credentials = read_credentials(account_file(tmp_path / "mine"))
            passed_on = login_answer(challenge, credentials, fingerprint(b"another certificate"))
            assert peer.ask(Code.LOGIN, passed_on, extFields={"AccessKey": KEY}).status
        with StoreClient(
            here.endpoint, acl_file=tmp_path / "mine", tls_ca=certificates.ca
        ) as client:
            assert client.topics() == {}
    for challenge in (b"", b"x", bytes(31), bytes(64)):
        with pytest.raises(FrameError):
            login_answer(challenge, credentials, b"")


@pytest.mark.threat("Accounts")
def test_accounts_that_change_count_for_open_connections(tmp_path: Path) -> None:
    path = tmp_path / "accounts.yml"
    with store_with(tmp_path, defaultTopicPerm="PUB|SUB") as (here, client):
        with PlainClient(here.endpoint, SECRET) as peer:

            def told() -> str:
                return peer.ask(Code.OFFSETS, {"topics": ["mine"]}).status

            assert not told()
            guarded(path, {"defaultTopicPerm": "DENY"})
            eventually(lambda: told() == "NO_PERMISSION")
            guarded(path, {"defaultTopicPerm": "SUB"})
            eventually(lambda: not told())
            guarded(path, {"secretKey": "another-secret", "defaultTopicPerm": "SUB"})
            eventually(lambda: told() == "UNAUTHENTICATED")
        guarded(path, {"accessKey": "somebody-else"})
        eventually(lambda: _is_unknown(client))


def _is_unknown(client: StoreClient) -> bool:
    try:
        client.offsets(["mine"])
    except ServiceError as error:
        return "aclFile" in str(error)
    return False


@pytest.mark.threat("Who may connect")
def test_a_stream_ends_with_its_account(tmp_path: Path) -> None:
    with (
        store_with(tmp_path, topicPerms=["mine=PUB"]) as (here, _),
        PlainClient(here.endpoint, SECRET) as peer,
    ):
        peer.begin(op="put")
        mine = block_of([b"a"], "mine").tobytes()
        numbers = iter(range(1_000_000))
        assert peer.put(mine, next(numbers)) == "PUT_OK"
        guarded(tmp_path / "accounts.yml", {"accessKey": "somebody-else"})
        eventually(lambda: peer.put(mine, next(numbers)) == "UNAUTHENTICATED")


def test_who_needs_no_account(tmp_path: Path) -> None:
    white = guarded(tmp_path / "accounts.yml", white=("127.0.0.1",))
    socket = str(tmp_path / "run" / "s")
    with served(tmp_path / "one", listen_socket=socket, **white) as here:
        for endpoint in (here.endpoint, here.socket):
            for acl_file in (None, account_file(tmp_path / "any", secret="any-other-secret")):
                with StoreClient(endpoint, acl_file=acl_file) as client:
                    client.create_topic(f"t{len(client.topics())}")
        guarded(tmp_path / "accounts.yml")  # nobody is white any more
        eventually(lambda: _asks(here.endpoint))
        with StoreClient(here.socket) as client:
            assert len(client.topics()) == 4


def _asks(endpoint: str) -> bool:
    with PlainClient(endpoint) as peer:
        return peer.ask(Code.OPEN, b"{}").status == "UNAUTHENTICATED"


def test_stages_belong_to_an_account(tmp_path: Path) -> None:
    with store_with(tmp_path, defaultTopicPerm="PUB") as (here, client):
        with client.stage_stream() as stream:
            stream.send(block_of([b"row"], "mine"))
            staged = stream.finish()
        admins = account_file(tmp_path / "admins", "administrator", "admins-secret-1")
        with (
            StoreClient(here.endpoint, acl_file=admins) as other,
            pytest.raises(RefusedError, match=f"belongs to the client 'account:{KEY}'"),
        ):
            other.abort([staged.stage_id])


@pytest.mark.parametrize("permission", [0, 2, 4, 6])
def test_the_permission_of_the_broker_counts_for_all(tmp_path: Path, permission: int) -> None:
    with (
        served(tmp_path / "store", broker_permission=permission) as here,
        StoreClient(here.endpoint) as client,
    ):
        here.store.create_topic("mine")

        def is_forbidden(work: Work) -> bool:
            try:
                work(client)
            except RefusedError as error:
                return f"brokerPermission is {permission}" in str(error)
            return False

        assert client.open(()).protocol  # with which each client begins
        assert [is_forbidden(WRITES[way]("mine")) for way in WRITES] == [not permission & 2] * 3
        assert is_forbidden(lambda c: c.query("mine", "key")) is not bool(permission & 4)
        with PlainClient(here.endpoint) as peer:
            listed = peer.ask(Code.WALK, {"path": ""})
        assert bool(listed.status) is not bool(permission & 4)


def test_a_stream_ends_with_the_permission_to_write(tmp_path: Path) -> None:
    with served(tmp_path / "store") as here, PlainClient(here.endpoint) as peer:
        mine = block_of([b"a"], "mine").tobytes()
        peer.begin(op="put")
        assert peer.put(mine, 0) == "PUT_OK"
        here.store.reconfigure(replace(here.store.config, broker_permission=4))
        assert peer.put(mine, 1) == "NO_PERMISSION"
        assert here.store.stats()["putMessages"] == 1


@pytest.mark.threat("Who may connect")
def test_secrets_do_not_show_or_travel(tmp_path: Path) -> None:
    mine = account_file(tmp_path / "mine")
    credentials = read_credentials(mine)
    client = StoreClient("rmq://127.0.0.1:1", acl_file=mine)
    for shown in (credentials, SecretKey(SECRET), client, client.connection):
        assert SECRET not in repr(shown)
        assert SECRET not in str(shown)
    with pytest.raises(TypeError):
        pickle.dumps(SecretKey(SECRET))


@pytest.mark.parametrize(
    "text",
    ["", "accessKey: a", "[1]", "a: {", "accessKey: a\nsecretKey: 1\nx: 1"],
)
def test_files_that_hold_no_account(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(OptionError, match=str(path)):
        StoreClient("rmq://127.0.0.1:1", acl_file=path)
