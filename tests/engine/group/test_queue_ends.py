"""Members of a group that learn where queues end, or copy tables; and how one of them leaves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from rmqstore_spark.client import StoreClient
from rmqstore_spark.consensus.driver.wire import DLedgerRequest, Status
from rmqstore_spark.consensus.messages import MemberCode
from rmqstore_spark.files.names import OWN_FOLDER, QUEUE_ENDS_NAME
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.frames import encode_frame
from tests.consensus.driver.members import (
    GROUP,
    MOST_GROWTH,
    GroupClient,
    addresses,
    connected,
    peak,
)
from tests.engine.group.stores import FAST, PATIENCE, StoreProcess, group_of
from tests.support.waiting import eventually, next_millisecond


def give_ends(store: StoreProcess, topics: int, queues: int) -> None:
    """Have a store that is stopped know where many queues end whose messages have expired."""
    ends = {str(queue): 123_456 for queue in range(queues)}
    told = {"known": True, "ends": {f"expired-topic-{n:06d}": ends for n in range(topics)}}
    (store.store / OWN_FOLDER / QUEUE_ENDS_NAME).write_text(json.dumps(told))


def test_a_repaired_member_learns_the_ends_of_hundreds_of_thousands_of_queues(
    tmp_path: Path,
) -> None:
    """They are more than fit into a frame, and than any guard against false messages let pass."""
    with group_of(tmp_path, preferredLeaderId="n2") as group:
        group.send(*(f"old {n} " + "x" * 100_000 for n in range(15)))
        next_millisecond()
        before = int(time.time() * 1000)
        group.send(*(f"new {n} " + "x" * 100_000 for n in range(15)))
        group.await_all()
        for store in group.stores.values():
            store.stop()
        repaired = group.stores["n2"]
        others = [store for store in group.stores.values() if store is not repaired]
        for store in others:
            give_ends(store, 34_000, 8)
            store.start()
        group.leader()
        group.await_answers()
        for store in others:
            with StoreClient(store.endpoint) as client:
                client.flush()
                client.expire(before, remove=True)
            eventually(lambda store=store: store.stats()["commitLogMinOffset"] > 0)
        shutil.rmtree(repaired.store / "dledger-n2")
        repaired.start()
        eventually(lambda: group.leader() is repaired, PATIENCE)
        kept = json.loads((repaired.store / OWN_FOLDER / QUEUE_ENDS_NAME).read_bytes())
        assert kept["known"]
        assert sum(map(len, kept["ends"].values())) > 272_000
        assert "cannot be copied" not in repaired.output
        group.stop()


@pytest.mark.threat("Members of a group")
def test_thousands_of_requests_for_queue_ends_take_no_memory(tmp_path: Path) -> None:
    """Each of them had an answer of megabytes made of its own: they took 600 MiB."""
    with group_of(tmp_path, 1) as group:
        group.send("one")
        (store,) = group.stores.values()
        store.stop()
        give_ends(store, 12_000, 16)
        store.start()
        group.leader()
        client = GroupClient(group.members)
        asked = {"code": DLedgerRequest.QUEUE_ENDS}
        page = client.ask("n0", asked["code"])
        before = peak(store)
        body = json.dumps({"group": GROUP, "remoteId": "n0"}).encode()
        frames = encode_frame(Command(int(DLedgerRequest.QUEUE_ENDS), body=body)) * 1000
        with ExitStack() as held:
            for _ in range(4):  # they do not read what they get
                held.enter_context(connected(store.address)).sendall(frames)
            queues = 0
            while True:
                queues += sum(map(len, page["ends"].values()))
                if page["isLast"]:
                    break
                topic = max(page["ends"])
                last = max(map(int, page["ends"][topic]))
                page = client.ask("n0", asked["code"], topic=topic, queueId=last)
            assert queues > 192_000
            assert peak(store) - before < MOST_GROWTH
        store.stop()


def connections(store: StoreProcess, address: str) -> set[str]:
    """The ports here from which a process is connected to an address, of those that are open."""
    host, _, port = address.rpartition(":")
    there = f"{socket.inet_aton(host)[::-1].hex().upper()}:{int(port):04X}"
    opened = Path(f"/proc/{store.process.pid}/fd")
    own = {os.readlink(each) for each in opened.iterdir() if each.is_symlink()}
    lines = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return {
        line[1] for line in lines
        if line[2] == there and line[3] == "01" and f"socket:[{line[9]}]" in own
    }  # fmt: skip


def test_a_follower_copies_over_one_connection_and_over_another_if_another_leads(
    tmp_path: Path,
) -> None:
    """It made one each second: those that had ended took ports that others were to listen on."""

    def copy(topic: str) -> tuple[StoreProcess, StoreProcess]:
        """Create a topic twice, and wait for each at a follower; return that and the leader."""
        leader, follower = group.leader(), group.followers()[0]
        table = follower.store / "config" / "topics.json"
        (kept,) = eventually(lambda: connections(follower, leader.broker))
        for name in (f"{topic}-one", f"{topic}-two"):
            with StoreClient(leader.endpoint) as client:
                client.create_topic(name, write_queue_nums=1)
            eventually(lambda name=name: table.exists() and name in table.read_text())
        assert connections(follower, leader.broker) == {kept}
        return follower, leader

    with group_of(tmp_path) as group:
        follower, leader = copy("before")
        leader.stop()
        eventually(lambda: not connections(follower, leader.broker))
        copy("after")
        group.stop()


def test_a_follower_that_ends_while_its_leader_does_not_answer_does_not_blame_it(
    tmp_path: Path,
) -> None:
    with group_of(tmp_path) as group:
        leader, (follower, other) = group.leader(), group.followers()
        eventually(lambda: connections(follower, leader.broker))
        for store in (leader, other):
            store.process.send_signal(signal.SIGSTOP)
        # It has asked where the broker of its leader is, and waits.
        eventually(lambda: follower.stats().get("groupHasLeader") is False, PATIENCE)
        follower.stop()
        _, stopping, after = follower.output.partition("Stopping: ")
        assert stopping
        assert "cannot be copied" not in after


def test_a_member_that_ends_while_it_connects_leaves_no_task_behind(tmp_path: Path) -> None:
    """Asyncio told so in the log, of four to eight at each end."""
    members = addresses(3)
    with ExitStack() as held:
        for me in ("n1", "n2"):
            host, _, port = members[me].rpartition(":")
            held.enter_context(socket.create_server((host, int(port)), backlog=0))
            for _ in range(3):  # then no one else gets in, and none is refused
                full = held.enter_context(socket.socket())
                full.setblocking(False)
                full.connect_ex((host, int(port)))
        store = held.enter_context(StoreProcess(tmp_path, "n0", members, **FAST))
        eventually(lambda: "VOTE of n1" in store.output and "VOTE of n2" in store.output, PATIENCE)
        store.stop()
        assert "Task was destroyed" not in store.output
        assert "was never" not in store.output


def test_a_member_of_a_group_without_entries_lacks_no_ends_to_lead(tmp_path: Path) -> None:
    """A leader of RocketMQ has no entry before the first message, and can prefer this one."""
    members = addresses(3)
    asked = {"term": 1, "leaderId": "n1", "localId": "n1"}
    with StoreProcess(tmp_path, "n0", members) as member:
        eventually(lambda: member.stats(), 60)
        client = GroupClient(members)
        client.ask("n0", DLedgerRequest.HEART_BEAT, **asked)
        codes = [
            client.ask(
                "n0", DLedgerRequest.LEADERSHIP_TRANSFER, **asked,
                transferId="n1", transfereeId="n0", takeLeadershipLedgerIndex=last,
            )["code"]
            for last in (5, -1)
        ]  # fmt: skip
    assert codes[0] == Status.FALL_BEHIND_TOO_MUCH
    assert codes[1] in (MemberCode.SUCCESS, Status.TAKE_LEADERSHIP_FAILED)
