"""Stores that had messages before they became members: these stay in `commitlog/`."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.client import StoreClient
from rmqstore_spark.consensus.driver.checks import RefusedPush, checked
from rmqstore_spark.consensus.driver.disk.entry_log import EntryLog
from rmqstore_spark.consensus.ledger import MemberLedger
from rmqstore_spark.consensus.messages import LedgerEntry, Push, PushType
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.errors import CorruptStoreError, UnsupportedStoreError
from rmqstore_spark.reader import Store
from tests.broker.broker import ask, broker, message
from tests.consensus.driver.members import MemberProcess, addresses, bodies
from tests.engine.group.stores import (
    FAST,
    StoreGroup,
    StoreProcess,
    bodies_in,
    group_of,
    problems_of,
)
from tests.support.processes.ports import free_port
from tests.support.processes.serving import block_of
from tests.support.waiting import eventually

SEGMENT = 1 << 20
SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": SEGMENT,
    "max_hash_slot_num": 1000,
    "max_index_num": 4000,
}


def old_store(path: Path, count: int = 30, size: int = 50_000, **settings: Any) -> list[str]:
    """Make a store without a group; returns the bodies of its messages, all in queue 0."""
    bodies = [f"old {number} " + "x" * size for number in range(count)]
    with StoreWriter.open(path, StoreConfig(**{**SMALL, **settings})) as store:
        for body in bodies:
            store.put(block_of([body.encode()]))
    return bodies


def copies(path: Path, members: int = 3) -> None:
    """Copy a store for each member of a group."""
    for number in range(members):
        shutil.copytree(path, path.parent / f"n{number}")


def has_pulled(store: StoreProcess, wanted: list[str]) -> bool:
    """Whether a store is there, and a consumer gets these messages of it."""
    return bool(store.stats()) and store.pulled() == wanted


def test_reads_go_across_the_boundary_through_kills_and_elections(tmp_path: Path) -> None:
    old = old_store(tmp_path / "old")
    copies(tmp_path / "old")
    with group_of(tmp_path) as group:
        sent = group.send(*(f"new {n}" for n in range(20)))
        leader = group.leader()
        assert leader.pulled() == [*old, *sent]
        leader.kill()
        sent += group.send(*(f"later {n} " + "y" * 60_000 for n in range(25)))  # a segment's end
        leader.start()
        group.await_all()
        for store in group.stores.values():
            store.kill()
        for store in group.stores.values():
            store.start()
        sent += group.send("last")
        group.await_all()
        pulled = [store.pulled() for store in group.stores.values()]
        with StoreClient(group.leader().endpoint) as client:
            assert client.topics().keys() >= {"orders"}
        group.stop()
    for texts in pulled:
        assert texts[: len(old)] == old
        counts = Counter(texts)
        assert [text for text in sent if counts[text] != 1] == []
    logs = []
    for store in group.stores.values():
        assert bodies_in(store.store) == pulled[0]
        assert not problems_of(store.store)
        data = store.store / f"dledger-{store.me}" / "data"
        segments = sorted(path.name for path in (store.store / "commitlog").iterdir()
                          if path.name.isdigit())  # fmt: skip
        assert min(path.name for path in data.iterdir()) == f"{int(segments[-1]) + SEGMENT:020}"
        logs.append(bodies(store.data))
    same = min(map(len, logs))  # while they are stopped, one of the rest may begin another term
    assert logs[0][:same] == logs[1][:same] == logs[2][:same]


def test_what_waits_in_the_old_log_is_delivered_by_the_group(tmp_path: Path) -> None:
    levels = "1s 6s"
    with broker(
        tmp_path / "n0", message_delay_level=levels, mapped_file_size_commit_log=SEGMENT
    ) as plain:
        requests = [
            message(b"at once"), message(b"soon", i="DELAY\x011\x02"),
            message(b"later", i="DELAY\x012\x02"),
        ]  # fmt: skip
        assert [answer.code for answer in ask(plain.address, *requests)] == [0, 0, 0]
        eventually(lambda: bodies_in(tmp_path / "n0") == ["at once", "soon"])
    settings = {**FAST, "mappedFileSizeCommitLog": SEGMENT, "messageDelayLevel": levels}
    with StoreProcess(tmp_path, "n0", addresses(1), **settings) as store:
        eventually(lambda: has_pulled(store, ["at once", "soon", "later"]), 60)
        store.kill()
        store.start()
        eventually(lambda: has_pulled(store, ["at once", "soon", "later"]), 60)
        store.stop()
    assert not problems_of(store.store, delay_levels=levels)


def test_a_member_alone_begins_again_and_again_before_it_has_an_entry(tmp_path: Path) -> None:
    """The group has no quorum, so nothing is committed."""
    old = old_store(tmp_path / "n0")
    with group_of_one_of_three(tmp_path) as group:
        store = group.stores["n0"]
        for _ in range(3):
            eventually(lambda: has_pulled(store, old))
            store.kill()
            store.start()
        eventually(lambda: has_pulled(store, old))
        store.stop()
    assert bodies_in(store.store) == old
    assert not problems_of(store.store)


class group_of_one_of_three:  # noqa: N801 - a context manager, as `group_of`
    """A group of which only n0 is started."""

    def __init__(self, folder: Path) -> None:
        self._group = StoreGroup(folder, 3)
        for me in ("n1", "n2"):
            self._group.stores[me].kill()

    def __enter__(self) -> StoreGroup:
        return self._group

    def __exit__(self, *_: object) -> None:
        self._group.kill()


@pytest.mark.parametrize("place", ["before_close", "before_mark", "after_mark"])
def test_a_start_that_is_killed_while_it_closes_the_old_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    old = old_store(tmp_path / "n0")
    members = addresses(1)
    settings = {**FAST, "mappedFileSizeCommitLog": SEGMENT}
    monkeypatch.setenv("RMQSTORE_FAILPOINT", f"group.{place}")
    with StoreProcess(tmp_path, "n0", members, **settings) as store:
        assert store.process.wait() == -9
        monkeypatch.delenv("RMQSTORE_FAILPOINT")
        store.start()
        eventually(lambda: store.stats().get("state") == "RUNNING", 60)
        assert eventually(lambda: store.send("new"))
        assert store.pulled() == [*old, "new"]
        store.stop()
    assert not problems_of(store.store)


def test_old_segments_expire_first_and_all_of_them(tmp_path: Path) -> None:
    old_store(tmp_path / "old")
    copies(tmp_path / "old")
    with group_of(tmp_path) as group:
        sent = group.send(*(f"new {n} " + "y" * 100_000 for n in range(15)))
        group.await_all()
        time.sleep(0.01)  # what follows is later than the time below
        before = int(time.time() * 1000)
        sent += group.send(*(f"newer {n} " + "y" * 100_000 for n in range(15)))
        group.await_all()
        for store in group.stores.values():
            with StoreClient(store.endpoint) as client:
                client.flush()
                client.expire(before, remove=True)
            eventually(lambda store=store: store.stats()["commitLogMinOffset"] == 3 << 20)
            assert not [p for p in (store.store / "commitlog").iterdir() if p.name.isdigit()]
        leader = group.leader()
        found = bodies_in(leader.store)
        leader.kill()
        sent += group.send("last")
        leader.start()
        group.await_all()
        group.stop()
    assert sent[-len(found) - 1 : -1] == found
    for store in group.stores.values():
        assert bodies_in(store.store) == [*found, sent[-1]]
        assert not problems_of(store.store)


@pytest.mark.parametrize("begins", ["with the group", "later"])
def test_a_member_without_the_old_messages_ends_and_says_which_to_copy(
    tmp_path: Path, begins: str
) -> None:
    """If it led, it would give the offsets of the old messages again."""
    old = old_store(tmp_path / "old")
    copies(tmp_path / "old", 2 if begins == "with the group" else 3)
    with ExitStack() as ends:
        group = StoreGroup(tmp_path, 3)
        ends.callback(group.kill)
        sent, empty = [], group.stores["n2"]
        if begins == "later":
            sent = group.send("before")
            empty.kill()
            empty.store.rename(tmp_path / "lost")
            empty.start()
        assert empty.process.wait() != 0
        assert "messages of before the group, up to 2097152, and this member has none" in (
            empty.output
        )
        empty.store.rename(tmp_path / "away")
        copied = group.stores["n0"].store / "commitlog"
        shutil.copytree(copied, empty.store / "commitlog")
        empty.start()
        sent += group.send(*(f"new {n}" for n in range(5)))
        group.await_all()
        assert {tuple(store.pulled()) for store in group.stores.values()} == {(*old, *sent)}
        group.stop()
    for store in group.stores.values():
        assert not problems_of(store.store)


def test_a_group_whose_messages_have_all_expired_continues_its_queues(tmp_path: Path) -> None:
    """Also if all members are started again, and if one of them has lost its files."""
    old = old_store(tmp_path / "old")
    copies(tmp_path / "old")
    with group_of(tmp_path) as group:
        group.leader()
        group.await_answers()
        time.sleep(0.01)  # the time below is later than that of its term
        before = int(time.time() * 1000)
        for store in group.stores.values():
            with StoreClient(store.endpoint) as client:
                client.flush()
                client.expire(before, remove=True)
            eventually(lambda store=store: store.stats()["commitLogMinOffset"] == 2 << 20)
        for store in group.stores.values():
            store.kill()
        (group.stores["n2"].store).rename(tmp_path / "lost")
        for store in group.stores.values():
            store.start()
        group.send("next")
        for store in group.stores.values():
            eventually(lambda store=store: bodies_in(store.store) != [])
        group.await_all()
        group.stop()
    for store in group.stores.values():
        with Store.open(store.store) as opened:
            queue = opened.queue("orders", 0)
        assert (queue.min_offset, queue.max_offset) == (len(old), len(old) + 1)
        assert not problems_of(store.store)


def test_messages_of_before_the_group_that_have_expired_need_not_be_copied(tmp_path: Path) -> None:
    old_store(tmp_path / "old")
    copies(tmp_path / "old")
    with group_of(tmp_path) as group:
        group.send("of the group")
        group.await_all()
        time.sleep(0.01)  # what follows is later than the time below
        before = int(time.time() * 1000)
        group.send(*(f"newer {n} " + "y" * 100_000 for n in range(15)))
        group.await_all()
        early, late = group.followers()
        for store in (early, late, group.leader()):
            with StoreClient(store.endpoint) as client:
                client.flush()
                client.expire(before, remove=True)
            eventually(lambda store=store: store.stats()["commitLogMinOffset"] >= 2 << 20)
            if store is early:  # its leader has the old messages still
                early.kill()
                early.start()
                more = group.send("one more")
                eventually(lambda more=more: early.stats() and bodies_in(early.store)[-1:] == more)
        late.kill()
        late.store.rename(tmp_path / "lost")
        late.start()
        sent = group.send("last")
        group.await_all()
        group.stop()
    assert bodies_in(late.store)[-1:] == sent
    assert not problems_of(late.store)


@pytest.mark.parametrize("count", [60, 29], ids=["longer", "other"])
def test_a_member_with_other_old_messages_ends_and_says_why(tmp_path: Path, count: int) -> None:
    """Also if they end in the same segment, and entries would have their places."""
    old_store(tmp_path / "old")
    copies(tmp_path / "old", 2)
    members = addresses(3)
    settings = {**FAST, "mappedFileSizeCommitLog": SEGMENT}
    with (
        StoreProcess(tmp_path, "n0", members, **settings) as first,
        StoreProcess(tmp_path, "n1", members, **settings) as second,
    ):
        group = [first, second]

        def leader() -> StoreProcess | None:
            return next((one for one in group if one.stats().get("state") == "RUNNING"), None)

        shutil.copytree(tmp_path / "old", tmp_path / "n2")
        with StoreProcess(tmp_path, "n2", members, **settings):  # without it, nobody may vote
            eventually(lambda: all(one.may_vote for one in group), 60)
        leads = eventually(leader, 60)
        assert eventually(lambda: leads.send("new"))
        shutil.rmtree(tmp_path / "n2")
        old_store(tmp_path / "n2", count)
        with StoreProcess(tmp_path, "n2", members, **settings) as other:
            assert other.process.wait() != 0
            assert "copy the folder commitlog/ of the other into a new store" in other.output
            assert eventually(lambda: (now := leader()) is not None and now.send("newer"), 60)
            assert all(one.process.poll() is None for one in group)
            other.store.rename(tmp_path / "away")
            shutil.copytree(tmp_path / "old", other.store)
            other.start()
            eventually(lambda: bool(other.stats()), 60)
            eventually(lambda: bodies_in(other.store)[-2:] == ["new", "newer"], 60)


def test_entries_at_other_places_are_refused(tmp_path: Path) -> None:
    """Of a leader that does not say what it had before, as RocketMQ's do not."""
    first = LedgerEntry(0, 1, 2 << 20, 100, b"x" * 52)
    push = Push(PushType.TRUNCATE, 1, "n1", 0, 0, -1, 0, (first,))
    log = EntryLog(str(tmp_path / "dledger-n0"), SEGMENT, 1 << 20)
    log.restart()
    ledger = MemberLedger(0, -1, [])
    for kind in (PushType.TRUNCATE, PushType.APPEND):
        with pytest.raises(RefusedPush, match="in commitlog/, end at 1048576"):
            checked(push._replace(type=kind), log, ledger)
    log.close()


def test_a_member_that_gets_its_entries_again_keeps_its_old_messages(tmp_path: Path) -> None:
    """The folder of the group is moved away, as for a repair; queues still name what is in it."""
    old = old_store(tmp_path / "old")
    copies(tmp_path / "old")
    with group_of(tmp_path) as group:
        sent = group.send(*(f"new {n} " + "y" * 60_000 for n in range(25)))
        group.await_all()
        (follower, _) = group.followers()
        follower.kill()
        (follower.store / f"dledger-{follower.me}").rename(tmp_path / "away")
        follower.start()
        group.await_all()
        assert follower.pulled() == [*old, *sent]
        group.stop()
    assert not problems_of(follower.store)


def as_member(**settings: Any) -> StoreConfig:
    return StoreConfig(
        **{
            **SMALL,
            "enable_d_leger_commit_log": True,
            "d_leger_group": "g",
            "d_leger_self_id": "n0",
            "d_leger_peers": f"n0-127.0.0.1:{free_port()}",
            "d_leger_bind_address": "127.0.0.1",
            "d_leger_heartbeat_interval": 100,
            **settings,
        }
    )


def test_an_old_log_that_does_not_fit_stops_the_start(tmp_path: Path) -> None:
    old = old_store(tmp_path / "store")
    with pytest.raises(UnsupportedStoreError, match="set mappedFileSizeCommitLog to their size"):
        StoreWriter.open(tmp_path / "store", as_member(mapped_file_size_commit_log=1 << 21))
    with StoreWriter.open(tmp_path / "store", StoreConfig(**SMALL)):
        pass  # it was not touched
    with StoreWriter.open(tmp_path / "store", as_member()) as store:
        eventually(lambda: not store.role.follows)
        store.put(block_of([b"new"]))
    assert bodies_in(tmp_path / "store") == [*old, "new"]
    (last,) = sorted((tmp_path / "store" / "commitlog").glob("0*"))[-1:]
    last.rename(tmp_path / "taken")
    with pytest.raises(CorruptStoreError, match="files are missing, or"):
        StoreWriter.open(tmp_path / "store", as_member())


def test_a_member_that_only_votes_begins_without_old_messages(tmp_path: Path) -> None:
    old_store(tmp_path / "n0")
    with MemberProcess(tmp_path, "n0", addresses(1)) as member:
        assert member.process.wait() != 0
        assert "Run it with `rmqstore serve`, or begin with an empty store" in member.output
