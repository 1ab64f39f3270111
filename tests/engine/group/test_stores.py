"""Three stores in one group, as processes: the leader is the master, and is killed."""

from __future__ import annotations

import re
import shutil
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from typer.testing import CliRunner

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.base.types import CommitRequest, StageInfo, WriterId
from rmqstore_spark.cli.app import app
from rmqstore_spark.client import StoreClient
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.errors import (
    OptionError,
    RefusedError,
    RmqStoreError,
    ServiceError,
    UnsupportedStoreError,
)
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.groups import group_offset
from rmqstore_spark.reader.options import ReadOptions
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.server.metrics import StoreCollector
from rmqstore_spark.verify import verify
from tests.broker.broker import ask, batch, message, name_server, route
from tests.engine.group.stores import FAST, StoreProcess, bodies_in, group_of, problems_of
from tests.support.accounts import account_file, guarded
from tests.support.certificates import make_certificates
from tests.support.processes.ports import free_port
from tests.support.processes.serving import block_of
from tests.support.waiting import eventually


def test_what_is_acknowledged_is_there_once_after_the_leader_was_killed(tmp_path: Path) -> None:
    with group_of(tmp_path) as group:
        sent = group.send(*(f"first {n}" for n in range(20)))
        leader = group.leader()
        leader.kill()
        sent += group.send(*(f"second {n}" for n in range(20)))
        leader.start()
        sent += group.send("last")
        group.await_all()
        pulled = [store.pulled() for store in group.stores.values()]
        group.stop()
    assert pulled[0] == pulled[1] == pulled[2]
    counts = Counter(pulled[0])
    assert [text for text in sent if counts[text] != 1] == []
    for store in group.stores.values():
        assert bodies_in(store.store) == pulled[0]
        assert not problems_of(store.store)


def test_a_follower_refuses_messages_and_serves_pulls(tmp_path: Path) -> None:
    with group_of(tmp_path) as group:
        sent = group.send(*(f"{n}" for n in range(5)))
        for follower in group.followers():
            assert not follower.send("no")
            assert eventually(lambda follower=follower: follower.pulled() == sent)
        (stats,) = [store.stats() for store in group.stores.values() if store is group.leader()]
        assert stats["groupRole"] == "LEADER"


def test_properties_with_a_zero_byte_are_refused(tmp_path: Path) -> None:
    """A start of a member could not tell them from what has not reached the disk."""
    text = "k\1v\0\2"
    with group_of(tmp_path, 1) as group:
        sent = group.send("one")
        leader = group.leader()
        wrong = (
            message(b"two", i=text),
            message(b"two", i=text + "DELAY\0011\2"),
            message(b"two", i=text + "TRAN_MSG\1true\2PGROUP\1p\2"),
            batch([b"two", b"three"], text.encode()),
        )
        for answer in ask(leader.broker, *wrong):
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert "properties hold a zero byte" in (answer.remark or "")
        good, bad = block_of([b"two"]), block_of([b"three"], properties=text.encode())
        with StoreClient(leader.endpoint) as client, client.put_stream() as stream:
            told = stream.put(np.concatenate([good, bad]))
        assert told.status == PutStatus.MESSAGE_ILLEGAL
        assert "record 1 of the block" in told.remark

        def stage_bad() -> None:
            with StoreClient(leader.endpoint) as client, client.stage_stream() as stages:
                stages.send(bad)
                stages.finish()

        with pytest.raises(RmqStoreError, match="properties hold a zero byte"):
            stage_bad()
        sent += group.send("\0")
        assert eventually(lambda: leader.pulled() == sent)


def progress_of(store: Path) -> int | None:
    """The offset of a group, as the store's files say."""
    with Store.open(store) as opened:
        return group_offset(opened, "readers", "orders", 0)


def stage(endpoint: str, bodies: list[bytes]) -> StageInfo:
    """Stage rows at a store."""
    with StoreClient(endpoint) as client, client.stage_stream() as stream:
        stream.send(block_of(bodies, queue_ids=[n % 3 for n in range(len(bodies))]))
        return stream.finish()


def test_a_batch_is_there_once_though_its_leader_was_killed(tmp_path: Path) -> None:
    """It is committed again at the next leader, as Spark does when no answer has come."""
    rows = [b"row %d " % n + bytes(100 * (n % 7)) for n in range(3000)]  # more than a segment
    with group_of(tmp_path) as group:
        group.send("before")
        for number in range(3):
            leader = group.leader()
            writer = WriterId.of_batch("nightly", number)
            with StoreClient(leader.endpoint) as client:
                done = client.commit(CommitRequest(writer, (stage(leader.endpoint, rows),)))
            assert done.status == "COMMITTED"
            leader.kill()
            successor = group.leader()
            with StoreClient(successor.endpoint) as client:
                again = client.commit(CommitRequest(writer, (stage(successor.endpoint, rows),)))
            assert again.status == "ALREADY_COMMITTED"
            assert (again.rows, again.physical_offset) == (done.rows, done.physical_offset)
            leader.start()
            group.await_all()
        group.send("after")
        group.await_all()
        group.stop()
    for store in group.stores.values():
        counts = Counter(bodies_in(store.store))
        assert [counts[row.decode()] for row in rows] == [3] * len(rows)
        assert len(counts) == len(rows) + 2
        assert not problems_of(store.store)


@pytest.mark.parametrize("clients", ["all", "spark"])
def test_a_new_leader_has_topics_and_progress(tmp_path: Path, clients: str) -> None:
    # The VIP port of the default would be that of another process.
    vip = {"vipListenPort": -1} if clients == "spark" else {}
    with group_of(tmp_path, clients=clients, **vip) as group:
        leader = group.leader()
        with StoreClient(leader.endpoint) as client:
            client.create_topic("wide", read_queue_nums=5, write_queue_nums=5)
            client.create_topic("orders", read_queue_nums=4, write_queue_nums=4)
            with client.put_stream() as stream:
                assert stream.put(block_of([b"one", b"two"])).status == PutStatus.PUT_OK
        with StoreClient(leader.endpoint) as client:
            client.commit_offsets("readers", {"orders": {0: 1}})
        wanted = {"wide", "orders"}
        for follower in group.followers():

            def has_them(follower: StoreProcess = follower) -> bool:
                with StoreClient(follower.endpoint) as client:
                    topics = client.topics()
                return wanted <= topics.keys() and topics["wide"].write_queue_nums == 5

            eventually(has_them)
            eventually(lambda follower=follower: progress_of(follower.store) == 1)
        leader.kill()
        with StoreClient(group.leader().endpoint) as client:
            assert client.topics()["wide"].write_queue_nums == 5


def test_members_for_spark_alone_refuse_rocketmqs_clients(tmp_path: Path) -> None:
    with group_of(tmp_path, 1, clients="spark") as group:
        (answer,) = ask(group.leader().broker, message(b"one"))
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "clients=spark" in (answer.remark or "")


def test_a_part_of_a_batch_is_never_shown(tmp_path: Path) -> None:
    """Its leader is killed while it proposes the batch, when the others have some of it."""
    rows = [b"row %d " % n + bytes(2000) for n in range(12_000)]
    writer = WriterId.of_batch("nightly", 1)
    with group_of(tmp_path) as group:
        group.send("before")
        group.await_all()
        leader, (follower, _) = group.leader(), group.followers()
        segments = follower.store / f"dledger-{follower.me}" / "data"
        stages = tuple(stage(leader.endpoint, rows[n::8]) for n in range(8))
        with ThreadPoolExecutor(1) as pool, StoreClient(leader.endpoint, retries=0) as client:
            commit = pool.submit(client.commit, CommitRequest(writer, stages))
            eventually(lambda: len(list(segments.iterdir())) > 2)
            leader.kill()
            assert isinstance(commit.exception(), ServiceError)
        successor = group.leader()
        with StoreClient(successor.endpoint) as client:
            stages = tuple(stage(successor.endpoint, rows[n::8]) for n in range(8))
            done = client.commit(CommitRequest(writer, stages))
        leader.start()
        group.send("after")
        group.await_all()
        follower.kill()
        shutil.rmtree(follower.store / "consumequeue")  # is built from the log
        follower.start()
        group.await_all()
        group.stop()
        twice = sum(text.startswith(b"row 0 ") for text in successor.bodies)
    assert done.status == "COMMITTED"
    assert twice == 2  # in the log, and once in the queues
    for store in group.stores.values():
        counts = Counter(bodies_in(store.store))
        assert [counts[row.decode()] for row in rows] == [1] * len(rows)
        assert len(counts) == len(rows) + 2
        assert not problems_of(store.store)
        # Members of RocketMQ have put the part into queues: nothing else may have its offsets.
        assert offsets_in(store.store) == offsets_in(successor.store)
    show_one(successor.store)
    assert not problems_of(successor.store)
    with Store.open(successor.store) as opened:
        told = [each.text for each in verify(opened).problems if each.kind == "batch"]
    assert [text.startswith("1 record(s) of the part") for text in told] == [False, True]


def show_one(path: Path) -> None:
    """Give a void entry the tagsCode of its message, which has no tags, as RocketMQ would."""
    with Store.open(path) as store:
        queue = store.queue("orders", 0)
        void = queue.format.is_void(queue.entries(0, queue.max_offset))
        at = int(np.argmax(void)) * 20 + 12
        segment = queue.segments.locate(at)
    assert void.any()
    with Path(segment.path).open("r+b") as file:
        file.seek(at - segment.start)
        file.write(bytes(8))


def offsets_in(path: Path) -> dict[int, int]:
    """How many records of the topic the log has in each queue, none with another's offset."""
    options = ReadOptions(columns=("topic", "queueId", "queueOffset"))
    with Store.open(path) as store:
        found = pa.Table.from_batches(list(store.scan(options))).filter(
            pc.field("topic") == "orders"
        )
        ends = {
            queue_id: store.queue("orders", queue_id).max_offset
            for queue_id in store.directory.topology.queues["orders"]
        }
    for queue_id, end in ends.items():
        offsets = found.filter(pc.field("queueId") == queue_id).column("queueOffset").to_pylist()
        assert sorted(offsets) == [*range(end)]
    return ends


def test_name_servers_know_who_leads(tmp_path: Path) -> None:
    with name_server(tmp_path) as address, group_of(tmp_path, namesrvAddr=address) as group:

        def is_known() -> bool:
            leader = group.leader()
            found = route(address, "orders")
            if not found:
                return False
            brokers = found["brokerDatas"][0]["brokerAddrs"]
            wanted = {"0": leader.broker}
            for store in group.followers():
                wanted[str(int(store.me[1:]) + 1)] = store.broker
            return bool(brokers == wanted)

        group.send("one")
        eventually(is_known)
        leader = group.leader()
        leader.kill()
        group.send("two")
        eventually(is_known)
        leader.start()
        eventually(lambda: len(group.followers()) == 2)
        eventually(is_known)


def test_figures_tell_of_the_group(tmp_path: Path) -> None:
    with group_of(tmp_path) as group:
        group.send("one")
        group.await_all()
        leader, followers = group.leader(), group.followers()

        def none_is_behind() -> bool:  # as far as they have told their leader
            shown = CliRunner().invoke(app, ["stats", leader.endpoint]).output
            return all(f"{store.me} 0 behind" in shown for store in followers) and bool(
                re.search(r"group +leader in term \d+; entries to (\d+), committed to \1; ", shown)
            )

        eventually(none_is_behind)
        shown = CliRunner().invoke(app, ["stats", followers[0].endpoint]).output
        assert re.search(rf"group +follower of {leader.me} in term", shown)
        registry = CollectorRegistry()
        registry.register(StoreCollector(leader.stats))
        text = generate_latest(registry).decode()
        assert 'rmqstore_group_role{state="LEADER"} 1.0' in text
        assert f'rmqstore_group_lag_entries{{member="{followers[0].me}"}} 0.0' in text


def test_the_port_of_members_has_accounts_and_tls(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "certificates")
    accounts = guarded(tmp_path / "accounts.yml")["acl_path"]
    protection = {
        "aclPath": accounts,
        "aclCredentialsPath": account_file(tmp_path / "own.yml"),
        "dLegerAclEnable": "true",
        "tlsServerCertPath": files.server_cert,
        "tlsServerKeyPath": files.server_key,
        "tlsClientTrustCertPath": files.ca,
        "dLegerTlsEnable": "true",
        "dLegerTlsServerMode": "enforcing",
    }
    with group_of(tmp_path, **protection) as group:  # its clients need neither
        sent = group.send("one", "two")
        leader = group.leader()
        leader.kill()
        sent += group.send("three")
        leader.start()
        group.await_all()
        shown = CliRunner().invoke(app, ["stats", leader.endpoint]).output
        assert group.leader().pulled() == sent
    assert "port TLS, accounts; calls TLS, signed" in re.sub(r"\s+", " ", shown)
    config = StoreConfig(
        enable_d_leger_commit_log=True, d_leger_group="g", d_leger_self_id="n0",
        d_leger_peers=f"n0-127.0.0.1:{free_port()}", d_leger_acl_enable=True,
        acl_path=accounts, acl_credentials_path=str(tmp_path / "own.yml"),
    )  # fmt: skip
    with pytest.raises(OptionError, match="run the member with `rmqstore serve`"):
        StoreWriter.open(tmp_path / "alone", config)


def test_old_segments_expire_and_a_member_without_files_gets_the_rest(tmp_path: Path) -> None:
    with group_of(tmp_path) as group:
        old = group.send(*(f"old {n} " + "x" * 100_000 for n in range(25)))
        group.await_all()
        time.sleep(0.01)  # what follows is later than the time below
        before = int(time.time() * 1000)
        new = group.send(*(f"new {n} " + "x" * 100_000 for n in range(15)))
        group.await_all()
        for store in group.stores.values():
            with StoreClient(store.endpoint) as client:
                client.flush()
                client.expire(before, remove=True)
            eventually(lambda store=store: store.stats()["commitLogMinOffset"] == 2 << 20)
        follower = group.followers()[0]
        follower.kill()
        follower.store.rename(tmp_path / "lost")
        follower.start()
        group.send("last")
        group.await_all()
        leader = group.leader()
        leader.kill()
        group.send("another")
        leader.start()
        group.await_all()
        group.stop()
    for store in group.stores.values():
        found = bodies_in(store.store)
        assert found[-17:-2] == new
        assert found[:-17] == old[-len(found) + 17 :]
        assert not problems_of(store.store)


@pytest.mark.parametrize("moved", [("consumequeue", "index"), ()], ids=["queues too", "log only"])
def test_a_member_whose_next_entries_have_expired_is_repaired_by_hand(
    tmp_path: Path, moved: tuple[str, ...]
) -> None:
    with group_of(tmp_path) as group:
        group.send(*(f"old {n} " + "x" * 100_000 for n in range(15)))
        group.await_all()
        follower = group.followers()[0]
        follower.kill()
        group.send(*(f"lost {n} " + "x" * 100_000 for n in range(30)))
        time.sleep(0.01)  # what follows is later than the time below
        before = int(time.time() * 1000)
        new = group.send(*(f"new {n} " + "x" * 100_000 for n in range(15)))
        for store in (group.leader(), *group.followers()):
            eventually(lambda store=store: store.pulled()[-1:] == new[-1:])
            with StoreClient(store.endpoint) as client:
                client.flush()
                client.expire(before, remove=True)
            eventually(lambda store=store: store.stats()["commitLogMinOffset"] >= 3 << 20)
        follower.start()
        folder = f"dledger-{follower.me}"
        eventually(lambda: f"move its folder {folder} away" in follower.output)
        follower.kill()
        (aside := tmp_path / "aside").mkdir()
        for name in (folder, *moved):
            (follower.store / name).rename(aside / name)
        follower.start()
        group.await_all()
        group.stop()
    assert bodies_in(follower.store)[-15:] == new
    assert not problems_of(follower.store)


def test_a_repaired_leader_continues_queues_whose_messages_have_all_expired(tmp_path: Path) -> None:
    with group_of(tmp_path, preferredLeaderId="n2") as group:
        group.send(*(f"old {n} " + "x" * 100_000 for n in range(15)), queue=1)
        group.send(*(f"lost {n} " + "x" * 100_000 for n in range(15)))
        time.sleep(0.01)  # what follows is later than the time below
        before = int(time.time() * 1000)
        group.send(*(f"new {n} " + "x" * 100_000 for n in range(15)))
        group.await_all()
        end = end_of(group.leader(), 1)
        repaired = group.stores["n2"]
        repaired.kill()
        for store in (group.leader(), *group.followers()):
            with StoreClient(store.endpoint) as client:
                client.flush()
                client.expire(before, remove=True)
            eventually(lambda store=store: store.stats()["commitLogMinOffset"] >= 2 << 20)
        shutil.rmtree(repaired.store / "dledger-n2")
        repaired.start()
        eventually(lambda: group.leader() is repaired, 60)
        group.send("next", queue=1)
        group.await_all()
        ends = [end_of(store, 1) for store in group.stores.values()]
        group.stop()
    assert end >= 15
    assert ends == [end + 1] * 3
    for store in group.stores.values():
        assert not problems_of(store.store)


def end_of(store: StoreProcess, queue: int) -> int:
    """The end of a queue of the topic."""
    with StoreClient(store.endpoint) as client:
        return client.offsets(["orders"]).queues["orders"][str(queue)].max_offset


def test_a_member_with_another_broker_name_ends(tmp_path: Path) -> None:
    with group_of(tmp_path) as group:
        group.send("one")
        (follower, _) = group.followers()
        follower.kill()
        settings = {**FAST, "brokerName": "others"}
        with StoreProcess(tmp_path, follower.me, group.members, **settings) as other:
            assert other.process.wait() != 0
            assert "has brokerName=orders, and this member others" in other.output
        group.send("two")


def test_a_preferred_leader_takes_over_without_losing_a_put(tmp_path: Path) -> None:
    with group_of(tmp_path, preferredLeaderId="n1") as group:
        sent = []
        for number in range(10_000):
            sent += group.send(f"{number}")
            if number > 20 and group.leader().me == "n1":
                break
        sent += group.send("last")
        group.await_all()
        counts = Counter(group.leader().pulled())
        follower = group.followers()[0]
        with StoreClient(follower.endpoint) as client, pytest.raises(RefusedError, match="is n1"):
            client.put_stream().put(block_of([b"no"]))
    assert [text for text in sent if counts[text] != 1] == []


def test_delayed_messages_and_transactions_are_the_next_leaders_work(tmp_path: Path) -> None:
    with group_of(tmp_path, messageDelayLevel="1s 3s") as group:
        group.send("plain")
        leader = group.leader()
        for number in range(20):
            assert leader.send(f"delayed {number}", properties=f"DELAY\x01{1 + number % 2}\x02")
        columns = {"topic": pa.array(["orders"] * 2), "body": pa.array([b"kept", b"dropped"])}
        with StoreClient(leader.endpoint) as client:
            halves = client.producer("payers").put(columns)
        eventually(lambda: leader.stats()["delayedDelivered"] > 0)
        leader.kill()
        successor = group.leader()
        with StoreClient(successor.endpoint) as client:
            producer = client.producer("payers")
            assert producer.commit(halves[:1]).statuses == ("COMMITTED",)
            assert producer.roll_back(halves[1:]).statuses == ("ROLLED_BACK",)
        wanted = {"plain, 0", "kept", *(f"delayed {n}" for n in range(20))}
        eventually(lambda: wanted <= set(bodies_in(successor.store)))
        leader.start()
        group.await_all()
        group.stop()
    for store in group.stores.values():
        assert sorted(bodies_in(store.store)) == sorted(wanted)
        assert not problems_of(store.store, delay_levels="1s 3s")


def test_stores_that_are_no_members_are_refused(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "enable_d_leger_commit_log": True,
        "d_leger_group": "g",
        "d_leger_self_id": "n0",
        "d_leger_peers": f"n0-127.0.0.1:{free_port()}",
        "d_leger_bind_address": "127.0.0.1",
    }

    def opened(folder: str, **changed: str) -> str:
        with pytest.raises(RmqStoreError) as raised:
            StoreWriter.open(tmp_path / folder, StoreConfig(**{**settings, **changed}))
        return str(raised.value)

    assert "dLegerGroup must name" in opened("new", d_leger_group="")
    assert "a letter and a number" in opened(
        "new", d_leger_self_id="first", d_leger_peers=f"first-127.0.0.1:{free_port()}"
    )
    assert "archiveTo is not supported" in opened("new", archive_to=str(tmp_path / "archive"))
    (tmp_path / "others" / "dledger-n9").mkdir(parents=True)
    assert "the log of another member (dledger-n9)" in opened("others")


def test_a_group_of_one_is_a_store_whose_log_rocketmq_can_open(tmp_path: Path) -> None:
    """It needs nobody, and all goes through the same parts."""
    with group_of(tmp_path, 1) as group:
        sent = group.send(*(f"{n}" for n in range(10)))
        (store,) = group.stores.values()
        store.kill()
        store.start()
        sent += group.send("last")
        assert eventually(lambda: store.pulled() == sent)
        store.stop()
    with pytest.raises(UnsupportedStoreError, match="Start it as one of them"):
        StoreWriter.open(store.store, StoreConfig())
