"""Three members of ours, as processes: they elect, replicate, are killed and come back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.consensus.driver.members import (
    GroupClient,
    MemberProcess,
    addresses,
    bodies,
    logs_until,
    record,
)
from tests.support.waiting import eventually

FAST = {"dLegerHeartbeatInterval": 200}


@pytest.fixture
def members() -> dict[str, str]:
    return addresses(3)


@pytest.fixture
def group(tmp_path: Path, members: dict[str, str]) -> Iterator[dict[str, MemberProcess]]:
    made = {me: MemberProcess(tmp_path, me, members, **FAST) for me in members}
    try:
        eventually(lambda: all(member.may_vote for member in made.values()), 60)
        yield made
    finally:
        for member in made.values():
            member.__exit__()


def has(stored: bytes, text: str) -> bool:
    """Whether a record has this text as its body."""
    return len(text).to_bytes(4, "big") + text.encode() + b"\x06orders" in stored


def texts(member: MemberProcess) -> list[bytes]:
    """The messages in a member's log, without those with which terms begin."""
    return [each for each in bodies(member.data) if b"rmqstore_term" not in each]


def test_what_is_acknowledged_is_in_every_log_after_the_leader_was_killed(
    group: dict[str, MemberProcess], members: dict[str, str]
) -> None:
    client = GroupClient(members)
    first = client.append(*(record(f"first {n}", n) for n in range(20)))
    leader = client.leader()
    assert leader is not None
    group[leader].kill()
    rest = {me: at for me, at in members.items() if me != leader}
    second = GroupClient(rest).append(*(record(f"second {n}", 20 + n) for n in range(20)))
    group[leader].start()
    last = client.append(record("last", 40))[0]
    eventually(lambda: all(member.committed >= last for member in group.values()), 60)
    assert len(logs_until(group, last)) == 1
    stored = texts(group["n0"])
    wanted = [f"{which} {n}" for which in ("first", "second") for n in range(20)]
    for text in (*wanted, "last"):
        assert [each for each in stored if has(each, text)]
    assert first == sorted(first)
    assert min(second) > max(first)


def test_a_member_that_lost_its_files_gets_them_again(
    group: dict[str, MemberProcess], members: dict[str, str], tmp_path: Path
) -> None:
    client = GroupClient(members)
    last = client.append(*(record(f"{n}" * 5000, n) for n in range(300)))[-1]  # two segments
    follower = next(me for me in members if me != client.leader())
    said = "began without files"
    assert group[follower].output.count(said) == 1  # it was new
    group[follower].kill()
    group[follower].start()
    eventually(lambda: group[follower].output.count("rmqstore: member") == 2, 60)
    assert group[follower].output.count(said) == 1
    group[follower].kill()
    group[follower].store.rename(tmp_path / "lost")
    group[follower].start()
    eventually(lambda: group[follower].committed >= last, 60)
    assert group[follower].output.count(said) == 2
    assert len(logs_until(group, last)) == 1


def test_a_group_that_has_lost_most_members_begins_again_with_copies_of_one(
    group: dict[str, MemberProcess], members: dict[str, str]
) -> None:
    """As docs/operate.md says, "If most members are lost"."""
    client = GroupClient(members)
    last = client.append(*(record(f"kept {n}", n) for n in range(20)))[-1]
    eventually(lambda: all(member.committed >= last for member in group.values()), 60)
    kept, *lost = group.values()
    for member in group.values():
        member.kill()
    for member in lost:
        shutil.rmtree(member.store)
        shutil.copytree(kept.store, member.store)
        folder = member.store / f"dledger-{kept.me}"
        folder.rename(member.store / f"dledger-{member.me}")
    for member in group.values():
        member.start()
    after = client.append(record("after", 20))[0]
    assert after > last
    eventually(lambda: all(member.committed >= after for member in group.values()), 60)
    assert len(logs_until(group, after)) == 1
    for text in (*(f"kept {n}" for n in range(20)), "after"):
        assert [each for each in texts(kept) if has(each, text)]


def test_entries_without_a_term_stop_the_start(
    group: dict[str, MemberProcess], members: dict[str, str]
) -> None:
    client = GroupClient(members)
    client.append(record("one"))
    group["n1"].kill()
    (group["n1"].store / "dledger-n1" / "currterm").unlink()
    group["n1"].start()
    assert group["n1"].process.wait() != 0
    assert "no file currterm" in group["n1"].output


def test_requests_that_are_wrong_change_nothing(
    group: dict[str, MemberProcess], members: dict[str, str]
) -> None:
    client = GroupClient(members)
    client.append(record("one"))
    leader = client.leader()
    assert leader is not None
    follower = next(me for me in members if me != leader)
    term = client.ask(follower, 50000)["term"]
    entry = {"magic": 1, "size": 53, "index": 7, "term": 0, "pos": 4000, "body": "aGVsbG8="}
    push = {"leaderId": leader, "localId": leader, "term": term, "type": "TRUNCATE"}
    assert client.ask(follower, 51004, **push, entry={**entry, "body": "%%"})["code"] == 411
    assert client.ask(follower, 51004, **push, entry={**entry, "size": 2**31 - 1})["code"] == 411
    assert client.ask(follower, 51004, **push, entry=entry)["code"] == 406  # not a record
    assert client.ask(follower, 51004, **{**push, "group": "bills"}, entry=entry)["code"] == 400
    assert client.ask(follower, 51004, **{**push, "remoteId": "n9"}, entry=entry)["code"] == 401
    assert client.ask(leader, 50001, body="aGVsbG8=")["code"] == 411
    before = client.append(record("two", 1))[0]
    for member in group.values():
        eventually(lambda member=member: member.committed >= before, 60)
        assert [text for text in texts(member) if b"hello" in text] == []
