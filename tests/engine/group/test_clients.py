"""What clients with the endpoints of all members are told, and how they follow the leader."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from rmqstore_spark.client import StoreClient
from rmqstore_spark.client.masters import find_master
from rmqstore_spark.datasource.options.parsing import parse_sink_options
from rmqstore_spark.datasource.sink.masters import at_master, with_masters
from rmqstore_spark.errors import ServiceError
from rmqstore_spark.pipelines.targets import create_topics
from tests.engine.group.stores import PATIENCE, StoreGroup, group_of
from tests.support.waiting import eventually


def endpoints(group: StoreGroup) -> list[str]:
    return [store.endpoint for store in group.stores.values()]


def why_none_leads(*asked: str) -> str:
    probe = partial(StoreClient, timeout_s=5.0, retries=0, connect_s=5.0)
    with pytest.raises(ServiceError) as raised:
        find_master(asked, probe, 0)
    return str(raised.value)


def test_who_finds_no_leader_is_told_what_each_member_is(tmp_path: Path) -> None:
    with group_of(tmp_path) as group:
        leader, (one, other) = group.leader(), group.followers()
        told = why_none_leads(one.endpoint, other.endpoint)
        assert f"It follows {leader.me}, the leader of its DLedger group" in told
        assert "name the endpoints of all" in told
        leader.kill()
        other.kill()
        eventually(lambda: not one.stats()["groupHasLeader"], PATIENCE)
        told = why_none_leads(*endpoints(group))
    assert f"{one.endpoint}: It is a member of a DLedger group that has no leader now" in told
    assert f"Nothing listens on {leader.endpoint}" in told
    assert "start most of them" in told
    assert "promote" not in told


def test_a_put_whose_leader_is_killed_tells_what_is_stored(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rmqstore_spark.cli", "put"]
    with group_of(tmp_path) as group:
        leader = group.leader()
        with subprocess.Popen(
            [*command, "|".join(endpoints(group)), "-t", "orders"], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as put:  # fmt: skip
            assert put.stdin is not None
            put.stdin.write("one\ntwo\nthree\n")
            put.stdin.flush()
            eventually(lambda: leader.stats()["putMessages"] == 3, PATIENCE)
            leader.kill()
            _, told = put.communicate("four\n", PATIENCE)
    assert put.returncode == 2
    lines = told.splitlines()
    # The leader may be killed before the client has read that it has them.
    assert re.fullmatch(r"rmqstore: [0-3] message\(s\) were put before the error\.", lines[0])
    assert "each of them may be stored or not" in lines[1]
    assert f"The store process at {leader.endpoint} went away" in lines[2]
    assert "encrypted" not in told


def test_a_job_creates_its_topic_at_the_leader(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with group_of(tmp_path) as group:
        options = {"endpoint": "|".join(endpoints(group)), "topic": "wide"}
        leader = group.leader()
        create_topics(options, {"wide": 5})
        create_topics(options, {"wide": 6})
        with StoreClient(leader.endpoint) as client:
            assert client.topics()["wide"].write_queue_nums == 6
        assert capsys.readouterr().out.splitlines() == [
            f"created topic wide with 5 queue(s) at {leader.endpoint}",
            f"topic wide now has 6 queue(s) at {leader.endpoint}",
        ]
        # The leader changes between the search for it and what is done there.
        connection = with_masters(parse_sink_options(options, streaming=False).target.connection)
        leader.kill()
        at_master(connection, 0, lambda client: client.create_topic("late"))
        with StoreClient(group.leader().endpoint) as client:
            assert "late" in client.topics()
