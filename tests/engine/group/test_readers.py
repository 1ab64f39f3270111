"""Readers of a member's endpoint see what readers of its folder do."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from rmqstore_spark.client import StoreClient
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.log.end import load_log
from tests.cli.processes import run
from tests.engine.group.stores import StoreProcess, bodies_in, group_of, problems_of
from tests.engine.group.test_old_log import copies, old_store
from tests.support.waiting import eventually, next_millisecond

TOPIC = "--topic=orders"


def printed(*words: object) -> list[str]:
    """What a command finds, without the place of the store."""
    done = run(*words)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout.splitlines()


def bodies_read(place: object, *words: object) -> list[str]:
    lines = printed("read", place, "--json", "--limit=0", *words)
    return sorted(json.loads(line)["body"] for line in lines)


def check(store: StoreProcess, wanted: list[str]) -> None:
    """Ask for all messages in all ways.

    Nothing makes the topic known before its first message: until then, all queues are read.
    """
    topic = (TOPIC,) if wanted else ()
    for place in (store.endpoint, store.store):
        report = json.loads("".join(printed("verify", place, "--json")))
        assert report["errors"] == 0
        assert report["beingWritten"]
        described = json.loads("".join(printed("info", place, "--json")))
        assert (described["kind"], described["state"]) == ("dledger", "being written")
        assert bodies_read(place, "--scan", TOPIC) == sorted(wanted)
        assert bodies_read(place, *topic) == sorted(wanted)


def check_keys(store: StoreProcess, keys: list[str]) -> None:
    for place in (store.endpoint, store.store):
        for key in keys:
            found = printed("query", place, TOPIC, "--key", key, "--json")
            assert [json.loads(line)["keys"] for line in found] == [[key]]


def send_keys(leader: StoreProcess, keys: list[str]) -> list[str]:
    for key in keys:
        assert leader.send(f"of {key}", properties=f"KEYS\x01{key}\x02")
    return [f"of {key}" for key in keys]


def test_an_endpoint_shows_what_the_folder_does(tmp_path: Path) -> None:
    with group_of(tmp_path, messageIndexEnable="false") as group:
        leader, *others = group.leader(), *group.followers()
        group.await_answers()
        eventually(lambda: len({each.stats()["commitLogMaxOffset"] for each in others}) == 1)
        for store in (leader, others[0]):
            check(store, [])
        sent = send_keys(leader, ["first", "second"])
        sent += group.send(*(f"message {n}" for n in range(20)))
        group.await_all()
        for store in (leader, others[0]):
            check(store, sent)
            check_keys(store, ["first", "second"])


def test_an_endpoint_of_a_store_with_older_segments(tmp_path: Path) -> None:
    old = old_store(tmp_path / "old", message_index_enable=False)
    copies(tmp_path / "old")
    with group_of(tmp_path, messageIndexEnable="false") as group:
        leader, follower, _ = group.leader(), *group.followers()
        group.await_all()
        for store in (leader, follower):
            check(store, old)
        sent = send_keys(leader, ["first"])
        sent += group.send(*(f"new {n} " + "y" * 100_000 for n in range(25)))
        group.await_all()
        for store in (leader, follower):
            check(store, [*old, *sent])
            check_keys(store, ["first"])
        next_millisecond()
        before = int(time.time() * 1000)
        sent += group.send(*(f"newer {n} " + "y" * 100_000 for n in range(15)))
        group.await_all()
        for store in (leader, follower):
            with StoreClient(store.endpoint) as client:
                client.flush()
                client.expire(before, remove=True)
            # Two old segments go, and as many of the group's.
            eventually(lambda store=store: store.stats()["commitLogMinOffset"] == 4 << 20)
            check(store, bodies_in(store.store))
    for store in group.stores.values():
        assert not problems_of(store.store)


@pytest.mark.threat("Who may connect")
def test_an_endpoint_does_not_show_what_is_not_committed(tmp_path: Path) -> None:
    with group_of(tmp_path) as group:
        group.send("committed")
        group.await_all()
        leader, *others = group.leader(), *group.followers()
        with Store.open(leader.endpoint) as seen:
            end = seen.log.file_end
        for store in others:
            store.kill()
        size = len(leader.data.rstrip(b"\0"))
        leader.send("not committed")
        assert len(leader.data.rstrip(b"\0")) > size
        with Store.open(leader.endpoint) as seen:
            log, _ = load_log(seen.directory)
            assert log.dledger is not None
            assert log.file_end == end
            assert not any(log.dledger.read(end, 64))
            ahead = np.empty(1 << 18, np.uint8)  # as large as is sent from the file itself
            first = log.dledger[0]
            seen.directory.files.read_into(first.path, 0, ahead)
            assert b"committed" in ahead.tobytes()
            assert b"not committed" not in ahead.tobytes()
