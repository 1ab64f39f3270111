"""What a member copies of a leader's tables, and what it leaves when that one leads no more."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from rmqstore_spark.client import StoreClient
from rmqstore_spark.consensus.driver.wire import DLedgerRequest
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.engine.group.group_role import GroupRole
from rmqstore_spark.ha.group_tables import GroupTables
from rmqstore_spark.ha.master_broker import MasterBroker, ToldTables
from tests.consensus.driver.members import GROUP, SEGMENT, GroupClient, addresses, as_peers
from tests.engine.group.stores import FAST, StoreProcess
from tests.support.stores.storing import config, messages
from tests.support.waiting import eventually

PATIENCE = 60.0


def test_a_new_leader_takes_nothing_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that was stopped answers when it continues, and another leads by then."""
    members = addresses(3)
    client = GroupClient(members)
    has_answer, leads = threading.Event(), threading.Event()
    real = MasterBroker.tables

    def late(broker: MasterBroker) -> ToldTables:
        told = real(broker)
        has_answer.set()
        assert leads.wait(PATIENCE)
        return told

    monkeypatch.setattr(MasterBroker, "tables", late)
    with ExitStack() as ends:
        others = [
            ends.enter_context(
                StoreProcess(tmp_path, me, members, mappedFileSizeCommitLog=SEGMENT, **FAST)
            )
            for me in ("n0", "n1")
        ]
        store = ends.enter_context(StoreWriter.open(tmp_path / "n2", third(members)))
        assert isinstance(store.role, GroupRole)
        tables = ends.enter_context(closing(GroupTables(store, store.role)))
        ends.callback(leads.set)
        # It may lead at first, and copies nothing then.
        eventually(lambda: hands_over(client, to="n0") or has_answer.is_set(), PATIENCE)
        assert has_answer.wait(PATIENCE)
        eventually(lambda: hands_over(client, to="n2") or store.state == "RUNNING", PATIENCE)
        eventually(lambda: store.state == "RUNNING", PATIENCE)
        store.create_topic("made")
        store.put_batch(messages([b"one"], topic="made"))
        store.consumer_offsets.commit("readers", {"made": {0: 1}})
        leads.set()
        tables.close()  # what it was at is done then
        assert "made" in {topic.name for topic in store.topics}
        assert store.consumer_offsets.get("readers", "made", 0) == 1
        for other in others:

            def has_it(endpoint: str = other.endpoint) -> bool:
                with StoreClient(endpoint) as follower:
                    return "made" in follower.topics()

            eventually(has_it, PATIENCE)


def third(members: dict[str, str]) -> StoreConfig:
    """The configuration of the member n2."""
    return config(
        enableDLegerCommitLog="true", dLegerGroup=GROUP, dLegerSelfId="n2",
        dLegerPeers=as_peers(members), dLegerBindAddress="127.0.0.1", brokerName="orders",
        mappedFileSizeCommitLog=SEGMENT, **FAST,
    )  # fmt: skip


def hands_over(client: GroupClient, *, to: str) -> bool:
    """Whether a member leads, to which the one that does is asked to hand over otherwise."""
    leader = client.leader()
    if leader is not None and leader != to:
        client.ask(leader, DLedgerRequest.LEADERSHIP_TRANSFER, transferId=leader, transfereeId=to)
    return leader == to
