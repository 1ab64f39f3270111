"""Members of ours and brokers of RocketMQ in one DLedger group; each of them is killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqstore_spark.layout.dledger import ENTRY_HEADER_SIZE
from tests.broker.broker import ask, pull, records_in
from tests.consensus.driver.members import record
from tests.engine.group.stores import problems_of
from tests.rocketmq.groups import PATIENCE, Group
from tests.rocketmq.processes import RocketMq
from tests.support.waiting import eventually

ROUNDS = int(os.environ.get("DLEDGER_ROUNDS", "3"))


@pytest.fixture
def group(
    rocketmq: RocketMq, name_server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Group]:
    ours, serving = request.param if isinstance(request.param[0], tuple) else (request.param, False)
    made = Group(rocketmq, name_server, tmp_path, ours, serving=serving)
    try:
        eventually(lambda: all(member.may_vote for member in made.ours.values()), PATIENCE)
        yield made
    finally:
        made.close()


def texts_in(entries: list[bytes], texts: list[str]) -> list[int]:
    """How many entries have each text as their message."""
    bodies = [entry[ENTRY_HEADER_SIZE:] for entry in entries]
    return [
        sum(len(text).to_bytes(4, "big") + text.encode() + b"\x06orders" in body for body in bodies)
        for text in texts
    ]


@pytest.mark.parametrize("group", [("n2",)], indirect=True)
def test_one_of_ours_votes_and_keeps_the_log_while_each_member_is_killed(group: Group) -> None:
    sent = [f"first {n} {'x' * (n * 17 % 3000)}" for n in range(150)]
    leader = group.leading(group.theirs)
    group.send(sent)
    group.kill(leader)  # the other broker and ours are a quorum
    other = next(me for me in group.theirs if me != leader)
    assert group.leading(group.theirs) == other
    sent += (second := [f"second {n}" for n in range(50)])
    group.send(second)
    group.start(leader)
    group.have_all(len(sent))
    group.kill("n2")
    sent += (third := [f"third {n}" for n in range(50)])
    group.send(third)
    group.start("n2")
    entries = group.have_all(len(sent))
    counts = texts_in(entries, sent)
    assert min(counts) >= 1  # a send that timed out may have been stored too
    assert sum(counts) <= len(entries)
    lost = group.ours["n2"]
    group.kill("n2")
    shutil.rmtree(lost.store)
    group.start("n2")
    group.send(["fourth"])  # an idle leader of RocketMQ does not notice what a follower has lost
    entries = group.have_all(len(entries) + 1)
    eventually(lambda: lost.may_vote, PATIENCE)
    leader = group.leading(group.theirs)
    group.kill(leader)  # it votes for the other broker
    other = next(me for me in group.theirs if me != leader)
    assert group.leading(group.theirs) == other
    group.send(["fifth"])
    group.start(leader)
    entries = group.have_all(len(entries) + 1)
    group.replace("n2")  # by a broker, on the same files
    group.send(["last"])
    assert b"last" in group.have_all(len(entries) + 1)[-1]
    eventually(lambda: group.max_offset("n2") > len(sent), PATIENCE)
    assert group.min_offset("n2") == 0  # it has built all of the queue


@pytest.mark.parametrize("group", [("n1", "n2")], indirect=True)
def test_two_of_ours_elect_one_when_the_broker_is_killed_and_hand_over_when_it_is_back(
    group: Group,
) -> None:
    group.leading(("n0",))
    sent = [f"first {n}" for n in range(100)]
    group.send(sent)
    group.kill("n0")
    group.leading(("n1", "n2"))
    appended = [f"appended {n}" for n in range(100)]
    stored = sum(texts_in(group.entries("n1"), sent))  # more, if a send was repeated
    group.client.append(*(record(text, stored + n) for n, text in enumerate(appended)))
    killed = group.leading(("n1", "n2"))
    group.start("n0")
    group.leading(("n0",))  # it is preferred
    group.kill(killed)
    sent += (second := [f"second {n}" for n in range(50)])
    group.send(second)
    group.start(killed)
    entries = group.have_all(250)
    assert min(texts_in(entries, sent + appended)) >= 1
    eventually(lambda: group.max_offset("n0") >= 250, PATIENCE)
    address = f"127.0.0.1:{group.ports['n0']}"
    found = b""
    for offset in range(0, group.max_offset("n0"), 10):
        (answer,) = ask(address, pull(offset, maxMsgNums="10"))
        found += b"".join(records_in(answer.body))
    assert all(text.encode() + b"\x06orders" in found for text in sent + appended)


@pytest.mark.parametrize(
    "group", [(("n1", "n2"), True), (("n2",), True)], indirect=True, ids=["two", "one"]
)
def test_ours_serve_clients_beside_brokers_and_each_leader_is_killed(group: Group) -> None:
    sent: list[str] = []
    for round_ in range(4):
        leader = group.leading(tuple(group.members))
        texts = [f"round {round_} {n} {'x' * (n * 37 % 3000)}" for n in range(40)]
        group.send(texts)
        sent += texts
        group.kill(leader)
        texts = [f"round {round_} without {leader} {n}" for n in range(20)]
        group.client, everybody = group.client.without(leader), group.client
        group.send(texts)
        group.client = everybody
        sent += texts
        group.start(leader)
        group.have_all(len(sent))
    entries = group.have_all(len(sent))
    assert min(texts_in(entries, sent)) >= 1  # a send that timed out may have been stored too

    require_same_queues(group, len(sent))
    group.replace("n2")  # by a broker, on the same files
    group.replace_broker("n0")  # and the other way round
    texts = [f"replaced {n}" for n in range(20)]
    group.send(texts)
    sent += texts
    assert min(texts_in(group.have_all(len(sent)), sent)) >= 1
    require_same_queues(group, len(sent))
    for store in group.ours.values():
        store.stop()
        assert not problems_of(store.store)


def require_same_queues(group: Group, least: int) -> None:
    """Wait until all members have the messages, and compare what they give to consumers."""

    def common_end() -> int | None:
        ends = {group.max_offset(me) for me in group.members}
        return ends.pop() if len(ends) == 1 and min(ends) >= least else None

    end = eventually(common_end, PATIENCE)
    queues = [group.pulled(me, end) for me in group.members]
    assert queues[0] == queues[1] == queues[2]


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("group", [("n2",), ("n1", "n2")], indirect=True, ids=["one", "two"])
def test_rounds_in_which_a_member_is_killed_or_stopped(group: Group) -> None:
    """In each, the others continue, and all have the same log when it is back."""
    group.leading(group.theirs)
    sent: list[str] = []
    for round_ in range(ROUNDS):
        victim = random.choice(tuple(group.members))
        is_killed = random.random() < 0.6
        has_broker = group.theirs != (victim,)  # one that takes messages meanwhile
        if is_killed:
            group.kill(victim)
        else:
            group.signal(victim, signal.SIGSTOP)
        everybody, group.client = group.client, group.client.without(victim)
        texts = [f"round {round_} {victim} {is_killed} {n}" for n in range(20)]
        if has_broker:
            group.send(texts)
            sent += texts
        else:
            group.client.append(record(f"round {round_}", 0, "others"))
        group.client = everybody
        if is_killed:
            group.start(victim)
        else:
            group.signal(victim, signal.SIGCONT)
        group.leading(group.theirs)
        entries = group.have_all(len(sent))
        assert min(texts_in(entries, sent), default=1) >= 1
