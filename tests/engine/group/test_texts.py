"""What stores of a group report of themselves, and what errors tell those who run them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.consensus.actions import Save
from rmqstore_spark.consensus.driver.disk.state_files import StateFiles
from rmqstore_spark.consensus.driver.group import MemberGroup
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.errors import OptionError, UnsupportedStoreError
from rmqstore_spark.layout.dledger import REPAIR
from rmqstore_spark.reader import Store
from tests.cli.processes import run
from tests.consensus.driver.members import SEGMENT, addresses
from tests.engine.group.stores import FAST, PATIENCE, StoreProcess, group_of
from tests.support.processes.ports import free_port
from tests.support.processes.serving import StoreProcess as PlainProcess
from tests.support.processes.serving import block_of
from tests.support.stores.storing import as_killed
from tests.support.waiting import eventually

SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": SEGMENT, "max_hash_slot_num": 1000, "max_index_num": 4000,
}  # fmt: skip


def member(**changed: Any) -> StoreConfig:
    """A group of one."""
    given = {
        "enable_d_leger_commit_log": True, "d_leger_group": "g", "d_leger_self_id": "n0",
        "d_leger_peers": f"n0-127.0.0.1:{free_port()}", "d_leger_bind_address": "127.0.0.1",
    }  # fmt: skip
    return StoreConfig(**{**SMALL, **given, **changed})


def test_members_that_are_separated_by_commas_are_told_how_it_is_written() -> None:
    with pytest.raises(OptionError, match=r"'n0-a:1,n1-b:2', with a comma: members are separated"):
        MemberGroup.of("g", "n1", "n0-a:1,n1-b:2")


def test_a_key_that_a_member_cannot_have_is_to_be_removed(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="Remove the key archiveTo"):
        StoreWriter.open(tmp_path / "store", member(archive_to=str(tmp_path / "archive")))


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_store_that_becomes_a_member_says_how_it_was_closed(
    tmp_path: Path, is_clean: bool
) -> None:
    with StoreWriter.open(tmp_path / "store", StoreConfig(**SMALL)) as store:
        assert store.put(block_of([b"old"])).ok
        if not is_clean:
            as_killed(tmp_path / "store", tmp_path / "killed")
    with StoreWriter.open(tmp_path / ("store" if is_clean else "killed"), member()) as store:
        how = "closed cleanly" if is_clean else "not closed cleanly"
        assert next(iter(store.recovery.lines())).startswith(f"The store was {how};")


def test_the_store_of_a_member_is_repaired_by_its_group(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "store", member()) as store:
        assert eventually(lambda: store.state == "RUNNING")
        assert store.put(block_of([b"one"])).ok
    for words in ((), ("--cut",), ("--rebuild",)):
        done = run("recover", tmp_path / "store", *words)
        assert done.returncode == 2
        assert "Start it as one of them" in done.stderr
        assert "docs/operate.md, A group that elects its master" in done.stderr
        assert "copy the messages" not in done.stderr


def described(place: object) -> tuple[str, str]:
    found = json.loads(run("info", place, "--json").stdout)
    return found["kind"], found["state"]


def test_a_store_that_runs_is_described_the_same_from_its_folder_and_its_endpoint(
    tmp_path: Path,
) -> None:
    with group_of(tmp_path, 1) as group:
        store = group.leader()
        assert described(store.endpoint) == described(store.store) == ("dledger", "being written")
        group.send("one")
        own = json.loads(run("topics", store.endpoint, "--all", "--json").stdout)
        assert {each["topic"]: each["system"] for each in own["topics"]}["rmqstore_term"]
        assert "rmqstore_term" not in run("topics", store.endpoint).stdout
        refused = run("create-topic", store.endpoint, "rmqstore_term")
        assert refused.returncode == 2
    with PlainProcess(tmp_path / "plain", tmp_path) as plain:
        plain.ready()
        assert described(plain.endpoint) == described(tmp_path / "plain")
        assert described(plain.endpoint) == ("plain", "being written")


def test_a_member_that_ends_says_once_why(tmp_path: Path) -> None:
    members = addresses(3)
    right = [StoreProcess(tmp_path, me, members, **FAST) for me in ("n0", "n1")]
    other = StoreProcess(
        tmp_path, "n2", members, **{**FAST, "mappedFileSizeCommitLog": 2 * SEGMENT}
    )
    try:
        assert other.process.wait(60) != 0
        assert len(re.findall("This member does not fit into its group", other.output)) == 1
        assert "accepts no more messages: its member of the group has ended." in other.output
    finally:
        for store in (*right, other):
            store.__exit__()


def test_a_member_that_has_only_begun_terms_is_whole_without_queues(tmp_path: Path) -> None:
    with group_of(tmp_path, 1) as group:
        store = group.leader()
        store.stop()
        store.start()
        eventually(lambda: store.stats().get("state") == "RUNNING", PATIENCE)  # in a second term
        store.stop()
    report = json.loads(run("verify", store.store, "--json").stdout)
    assert (report["errors"], report["counts"]["records"]) == (0, 2)
    assert described(store.store) == ("dledger", "closed")
    with Store.open(store.store) as seen:
        assert not seen.lacks_queues
        assert seen.awaits_queues


def test_a_member_whose_messages_lack_queues_is_told_apart(tmp_path: Path) -> None:
    with group_of(tmp_path, 1) as group:
        group.send("one")
        group.stop()
    (store,) = group.stores.values()
    shutil.rmtree(store.store / "consumequeue")
    done = run("verify", store.store)
    assert done.returncode == 1
    assert "[no-queues]" in done.stdout
    with Store.open(store.store) as seen:
        assert seen.lacks_queues


@pytest.mark.parametrize("kept", ["checkpoint", "currterm"])
def test_a_member_without_an_entry_is_called_one(tmp_path: Path, kept: str) -> None:
    with StoreProcess(tmp_path, "n0", addresses(3), **FAST) as store:
        eventually(lambda: store.stats().get("groupRole"), PATIENCE)  # and nobody else is there
        assert described(store.endpoint) == ("dledger", "being written")
        store.stop()
    folder = store.store / "dledger-n0"
    if kept == "currterm":
        (folder / "checkpoint").unlink()
        StateFiles(str(folder)).write_term(Save(3, None, is_voter=True))
    assert [each.name for each in folder.rglob("*") if each.is_file()] == [kept]
    assert described(store.store) == ("dledger", "closed")
    done = run("verify", store.store)
    assert done.returncode == 0, done.stdout
    assert "that of a member of a DLedger group" in done.stdout
    with pytest.raises(UnsupportedStoreError, match="belongs to a DLedger group"):
        StoreWriter.open(store.store, StoreConfig(**SMALL))


@pytest.mark.parametrize("name", ["checkpoint", "currterm"])
def test_a_member_whose_state_is_cut_says_how_to_repair_it(tmp_path: Path, name: str) -> None:
    with group_of(tmp_path) as group:
        sent = group.send("1")
        group.await_all()
        store = group.followers()[0]
        store.stop()
        folder = store.store / f"dledger-{store.me}"
        (folder / name).write_bytes(b"")
        store.start()
        assert store.process.wait(PATIENCE) != 0
        assert REPAIR in store.output
        folder.rename(tmp_path / "away")
        store.start()
        eventually(lambda: store.stats().get("queues", {}).get("orders"), PATIENCE)
        group.await_all()
        assert store.pulled() == sent
