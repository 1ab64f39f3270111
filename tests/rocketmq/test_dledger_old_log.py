"""Stores with messages of before their group, at members of ours and at brokers of RocketMQ."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqstore_spark.engine import StoreConfig, StoreWriter
from tests.broker.broker import ask, message, number, pull, records_in
from tests.consensus.driver.members import GROUP, addresses, as_peers
from tests.engine.group.stores import StoreProcess, bodies_in, problems_of
from tests.rocketmq.groups import Group
from tests.rocketmq.processes import SIZES, Broker, RocketMq
from tests.rocketmq.test_dledger import require_same_queues, texts_in
from tests.support.processes.ports import free_port
from tests.support.processes.serving import block_of
from tests.support.waiting import eventually

PATIENCE = 120.0


def texts_of(address: str, end: int) -> list[str]:
    """The bodies of the messages of queue 0, up to an offset, as a consumer gets them."""
    found: list[str] = []
    while len(found) < end:
        (answer,) = ask(address, pull(len(found)))
        assert answer.code == 0, answer.remark
        found += [
            record[88 : 88 + int.from_bytes(record[84:88], "big")].decode()
            for record in records_in(answer.body)
        ]
        assert number(answer, "nextBeginOffset") == len(found)
    return found


def send(address: str, *texts: str) -> list[str]:
    """Send messages, each until it is acknowledged."""
    for text in texts:
        eventually(lambda text=text: ask(address, message(text.encode()))[0].code == 0, PATIENCE)
    return list(texts)


def test_a_brokers_store_becomes_a_member_here_and_there_and_here_again(
    rocketmq: RocketMq, name_server: str, broker: Callable[..., Broker], tmp_path: Path
) -> None:
    members = addresses(1)
    store = tmp_path / "n0"
    group = {
        "enableDLegerCommitLog": "true", "dLegerGroup": GROUP, "dLegerPeers": as_peers(members),
        "dLegerSelfId": "n0",
    }  # fmt: skip
    port = free_port(around=(1,))
    address = f"127.0.0.1:{port}"

    def theirs(**settings: str) -> Broker:
        return Broker(rocketmq, name_server, port, store, brokerName=GROUP, **settings)

    with theirs() as plain:
        sent = send(address, *(f"plain {n} {'x' * 20_000}" for n in range(30)))
        plain.stop()
    for round_ in range(2):
        with StoreProcess(tmp_path, "n0", members, **SIZES) as ours:
            eventually(lambda ours=ours: ours.stats().get("state") == "RUNNING", PATIENCE)
            sent += send(ours.broker, *(f"ours {round_} {n} {'y' * 9000}" for n in range(40)))
            assert texts_of(ours.broker, len(sent)) == sent
            ours.kill()
            ours.start()
            eventually(lambda ours=ours: ours.stats().get("state") == "RUNNING", PATIENCE)
            assert texts_of(ours.broker, len(sent)) == sent
            ours.stop()
        assert bodies_in(store) == sent
        assert not problems_of(store)
        with theirs(**group) as member:
            sent += send(address, *(f"theirs {round_} {n} {'z' * 9000}" for n in range(40)))
            assert texts_of(address, len(sent)) == sent
            member.stop()


def test_a_store_that_a_broker_made_a_member_is_opened_here(
    rocketmq: RocketMq, name_server: str, tmp_path: Path
) -> None:
    members = addresses(1)
    store = tmp_path / "n0"
    sent = old_store(store, 20)
    port = free_port(around=(1,))
    with Broker(
        rocketmq, name_server, port, store, brokerName=GROUP, enableDLegerCommitLog="true",
        dLegerGroup=GROUP, dLegerPeers=as_peers(members), dLegerSelfId="n0",
    ) as broker:  # fmt: skip
        sent += send(f"127.0.0.1:{port}", *(f"theirs {n} {'z' * 9000}" for n in range(40)))
        broker.kill()
    with StoreProcess(tmp_path, "n0", members, **SIZES) as ours:
        eventually(lambda: ours.stats().get("state") == "RUNNING", PATIENCE)
        sent += send(ours.broker, "ours")
        assert texts_of(ours.broker, len(sent)) == sent
        ours.stop()
    assert bodies_in(store) == sent
    assert not problems_of(store)


def old_store(path: Path, count: int) -> list[str]:
    """Make a store of ours without a group; returns the bodies of its messages."""
    texts = [f"old {number} " + "x" * 20_000 for number in range(count)]
    config = StoreConfig().with_overrides({key: str(value) for key, value in SIZES.items()})
    with StoreWriter.open(path, config) as store:
        for text in texts:
            store.put(block_of([text.encode()]))
    return texts


@pytest.mark.parametrize("ours", [("n2",), ("n1", "n2")], ids=["one", "two"])
def test_a_group_goes_on_behind_the_messages_that_all_of_it_had(
    rocketmq: RocketMq, name_server: str, tmp_path: Path, ours: tuple[str, ...]
) -> None:
    old = old_store(tmp_path / "old", 25)
    for me in ("n0", "n1", "n2"):
        shutil.copytree(tmp_path / "old", tmp_path / me)
    group = Group(rocketmq, name_server, tmp_path, ours, serving=True)
    try:
        eventually(lambda: all(member.may_vote for member in group.ours.values()), PATIENCE)
        sent: list[str] = []
        for round_ in range(2):
            leader = group.leading(tuple(group.members))
            texts = [f"round {round_} {n} {'x' * (n * 37 % 3000)}" for n in range(40)]
            group.send(texts)
            group.kill(leader)
            group.client, everybody = group.client.without(leader), group.client
            texts += (more := [f"round {round_} without {leader} {n}" for n in range(20)])
            group.send(more)
            group.client = everybody
            sent += texts
            group.start(leader)
            group.have_all(len(sent))
        assert min(texts_in(group.have_all(len(sent)), sent)) >= 1
        require_same_queues(group, len(old) + len(sent))
        group.replace("n2")  # by a broker, on the same files
        group.replace_broker("n0")  # and the other way round
        texts = [f"replaced {n}" for n in range(20)]
        group.send(texts)
        sent += texts
        assert min(texts_in(group.have_all(len(sent)), sent)) >= 1
        require_same_queues(group, len(old) + len(sent))
        for store in group.ours.values():
            store.stop()
            assert not problems_of(store.store)
            assert bodies_in(store.store)[: len(old)] == old
    finally:
        group.close()
