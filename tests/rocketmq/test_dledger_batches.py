"""A leader of ours is killed within a batch of Spark: what is sent afterwards is not lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rmqstore_spark.base.types import CommitRequest, WriterId
from rmqstore_spark.client import StoreClient
from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.remoting.codec.codes import ResponseCode
from tests.broker.broker import ask, number, pull, records_in
from tests.engine.group.stores import StoreProcess, bodies_in, problems_of, text_of
from tests.engine.group.test_stores import stage
from tests.rocketmq.groups import PATIENCE, Group
from tests.rocketmq.processes import RocketMq
from tests.support.waiting import eventually

ROWS = [b"row %d " % n + bytes(2000) for n in range(12_000)]


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("ours", [("n2",), ("n1", "n2")], ids=["one", "two"])
def test_messages_behind_a_part_of_a_batch_reach_consumers_of_each_member(
    rocketmq: RocketMq,
    name_server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ours: tuple[str, ...],
) -> None:
    monkeypatch.setenv("RMQSTORE_FAILPOINT", "group.within_run:3")
    group = Group(rocketmq, name_server, tmp_path, ours, serving=True, preferredLeaderId="n2")
    monkeypatch.delenv("RMQSTORE_FAILPOINT")
    try:
        assert group.leading(("n2",)) == "n2"
        group.send(before := [f"before {n}" for n in range(10)])
        leader = group.ours["n2"]
        assert isinstance(leader, StoreProcess)
        commit(leader)
        leader.process.wait(PATIENCE)
        everybody, group.client = group.client, group.client.without("n2")
        group.leading(tuple(me for me in group.members if me != "n2"))
        group.send(after := [f"after {n}" for n in range(50)])
        group.client = everybody
        group.start("n2")
        group.have_all(len(before + after))
        sent = before + after
        for me in group.members:
            eventually(lambda me=me: consumed(group, me)[sent[-1]], PATIENCE)
            counts = consumed(group, me)
            assert {counts[text] for text in sent} == {1}
            others = sum(counts.values()) - len(sent)
            assert others > 0 if me in group.theirs else others == 0
        assert len({group.max_offset(me) for me in group.members}) == 1
        for me in ours:
            store = group.ours[me]
            store.stop()
            assert bodies_in(store.store) == sent
            assert not problems_of(store.store)
    finally:
        group.close()


def commit(leader: StoreProcess) -> None:
    """Commit a batch, within which the leader dies."""
    staged = tuple(stage(leader.endpoint, ROWS[n::8]) for n in range(8))
    with (
        StoreClient(leader.endpoint, retries=0) as client,
        pytest.raises(RmqStoreError),
    ):
        client.commit(CommitRequest(WriterId.of_batch("nightly", 1), staged))


def consumed(group: Group, me: str) -> Counter[str]:
    """The messages of queue 0 that a consumer gets from a member."""
    found: Counter[str] = Counter()
    at, end = 0, group.max_offset(me)
    while at < end:
        (answer,) = ask(f"127.0.0.1:{group.ports[me]}", pull(at))
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:  # a follower asks for topics each 10 s
            return found
        found.update(map(text_of, records_in(answer.body) if answer.code == 0 else ()))
        following = number(answer, "nextBeginOffset")
        assert following > at
        at = following
    return found
