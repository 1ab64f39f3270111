"""The commands that write, given the members of a group: they write to whichever leads."""

from __future__ import annotations

from pathlib import Path

from tests.cli.processes import run
from tests.engine.group.stores import group_of
from tests.support.processes.ports import free_port


def test_commands_that_write_follow_the_leader(tmp_path: Path) -> None:
    """They took one endpoint, and no text of a follower said where its leader is."""
    with group_of(tmp_path) as group:
        first = group.leader()
        members = "|".join(store.endpoint for store in group.stores.values())
        followers = " | ".join(store.endpoint for store in (*group.followers(), first))
        made = run("create-topic", followers, "t", "--queues", "2")
        assert (made.returncode, made.stderr) == (0, ""), made
        assert "topic t: 2 queues" in made.stdout
        assert run("put", members, "-t", "t", "-q", "0", input="by the first\n").returncode == 0
        first.kill()
        assert run("put", members, "-t", "t", "-q", "0", input="by the second\n").returncode == 0
        new = group.leader()
        assert new is not first
        read = run("read", new.endpoint, "-t", "t", "--queue", "0", "--json")
        assert [f"by the {leader}" in read.stdout for leader in ("first", "second")] == [True] * 2
        reset = run("reset-offset", members, "g", "-t", "t", "--latest", "--yes")
        assert "offset(s) of group g have changed" in reset.stdout, reset
        assert run("delete-topic", members, "t").returncode == 0
        one = run("stats", members)
        assert one.returncode == 2
        assert "it names replicas of a store, and one of them is needed" in one.stderr


def test_endpoints_that_are_no_replicas_are_refused(tmp_path: Path) -> None:
    nobody = f"rmq://127.0.0.1:{free_port()}"
    twice = run("put", f"{nobody}|{nobody}", "-t", "t", input="x\n")
    assert twice.returncode == 2
    assert "is given twice. Name each replica once." in twice.stderr
    path = run("create-topic", f"{nobody}|/data/store", "t")
    assert path.returncode == 2
    assert "is not an endpoint of a store process" in path.stderr
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with group_of(tmp_path / "one", 1) as one, group_of(tmp_path / "two", 1, brokerName="b") as two:
        both = "|".join(group.leader().endpoint for group in (one, two))
        done = run("create-topic", both, "t")
        assert done.returncode == 2
        assert "are named as replicas of one store" in done.stderr
