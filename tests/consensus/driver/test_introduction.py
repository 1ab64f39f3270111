"""Members whose configurations contradict each other: at a start, or when they meet."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from rmqstore_spark.consensus.driver.group import MemberGroup
from rmqstore_spark.errors import OptionError
from tests.consensus.driver.members import GroupClient, MemberProcess, addresses, record
from tests.support.processes.ports import free_port
from tests.support.waiting import eventually

FAST = {"dLegerHeartbeatInterval": 200}


@pytest.mark.parametrize(
    ("name", "me", "peers", "text"),
    [
        ("", "n0", "n0-h:1", "dLegerGroup must name the group"),
        ("g", "n0", "n0-h:1;n0-h:2", "two members n0"),
        ("g", "n0", "n0-h:1;n1-h:1", "two members with one address"),
        ("g", "n2", "n0-h:1;n1-h:2", "dLegerSelfId is 'n2'"),
        ("g", "n0", "n0-h", "n0-h"),
        ("g", "n0", "h:1", "a member is ID-HOST:PORT"),
        ("g", "n0", "", "dLegerPeers must name all members"),
    ],
)
def test_what_cannot_be_a_group_is_refused(name: str, me: str, peers: str, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        MemberGroup.of(name, me, peers)


def test_a_leader_that_is_no_member_is_not_preferred() -> None:
    group = MemberGroup.of("g", "n0", "n0-h:1;n1-h:2")
    group.require_members(("n1",))
    with pytest.raises(OptionError, match="preferredLeaderId names 'n9', but dLegerPeers has n0"):
        group.require_members(("n1", "n9"))


def test_a_second_member_with_an_id_ends_when_it_meets_the_first(tmp_path: Path) -> None:
    """As if a file was copied to another machine: there, it listens at its own address."""
    members = addresses(3)
    with ExitStack() as running:
        for me in members:
            here = {"dLegerBindAddress": "127.0.0.1", **FAST}
            running.enter_context(MemberProcess(tmp_path, me, members, **here))
        first = GroupClient(members).append(record("one"))[0]
        port = members["n1"].rpartition(":")[2]
        elsewhere = f"127.0.0.2:{port}"
        (tmp_path / "copy").mkdir()
        copy = running.enter_context(
            MemberProcess(tmp_path / "copy", "n1", members, dLegerBindAddress="127.0.0.2", **FAST)
        )
        assert copy.process.wait() != 0
        assert "dLegerSelfId of this one is n1 too. Give each member an id" in copy.output
        assert elsewhere in copy.output  # where it listened
        last = GroupClient(members).append(record("two"))[0]
        assert last > first


def test_a_port_in_use_is_that_of_a_member_that_runs(tmp_path: Path) -> None:
    members = addresses(1)
    (tmp_path / "copy").mkdir()
    with MemberProcess(tmp_path, "n0", members, **FAST) as first:
        eventually(lambda: "rmqstore: member" in first.output, 60)
        with MemberProcess(tmp_path / "copy", "n0", members, **FAST) as second:
            assert second.process.wait() != 0
            said = "This is the port of n0 in dLegerPeers: perhaps this member runs already."
            assert said in second.output


def test_a_member_that_began_first_ends_when_the_one_of_the_address_begins(tmp_path: Path) -> None:
    members = addresses(1)
    (tmp_path / "copy").mkdir()
    with MemberProcess(
        tmp_path / "copy", "n0", members, dLegerBindAddress="127.0.0.2", **FAST
    ) as copy:
        eventually(lambda: "does not reach itself" in copy.output, 60)
        with MemberProcess(
            tmp_path, "n0", members, dLegerBindAddress="127.0.0.1", **FAST
        ) as member:
            assert copy.process.wait() != 0
            assert "Another process answers at" in copy.output
            assert GroupClient(members).append(record("one"))
            assert member.process.poll() is None


def test_members_of_two_groups_tell_each_other(tmp_path: Path) -> None:
    members = addresses(3)
    with ExitStack() as running:
        ours = [running.enter_context(MemberProcess(tmp_path, me, members, **FAST))
                for me in ("n0", "n1")]  # fmt: skip
        other = running.enter_context(
            MemberProcess(tmp_path, "n2", members, dLegerGroup="bills", **FAST)
        )
        advice = "All members need the same dLegerGroup"
        assert other.process.wait() != 0
        assert "This member does not fit into its group" in other.output
        assert advice in other.output
        refused = "is refused (UNKNOWN_GROUP): it is for the group"
        eventually(lambda: all(refused in member.output for member in ours), 60)
        other = running.enter_context(MemberProcess(tmp_path, "n2", members, **FAST))
        last = GroupClient(members).append(record("one"))[0]
        eventually(lambda: other.committed >= last, 60)


def test_members_with_other_peers_tell_each_other(tmp_path: Path) -> None:
    members = addresses(3)
    wrong = {**members, "n1": f"127.0.0.1:{free_port()}"}
    with (
        MemberProcess(tmp_path, "n0", members, **FAST) as right,
        MemberProcess(tmp_path, "n2", wrong, **FAST) as other,
    ):
        for member in (right, other):
            eventually(lambda member=member: "has another dLegerPeers" in member.output, 60)


def test_a_member_that_mixes_up_addresses_ends_and_the_others_go_on(tmp_path: Path) -> None:
    """It expects each of the others where another is, so none of those has a second process."""
    members = addresses(3)
    swapped = {**members, "n0": members["n1"], "n1": members["n0"]}
    here = {"dLegerBindAddress": "127.0.0.1", **FAST}
    with ExitStack() as running:
        *right, other = [running.enter_context(MemberProcess(tmp_path, me, members, **here))
                         for me in members]  # fmt: skip
        first = GroupClient(members).append(record("one"))[0]
        other.kill()
        other = running.enter_context(MemberProcess(tmp_path, "n2", swapped, **FAST))
        assert other.process.wait() != 0
        assert "This member does not fit into its group" in other.output
        assert "is another member there. All members need the same dLegerPeers" in other.output
        own = {**members, "n2": members["n1"], "n1": members["n2"]}
        other = running.enter_context(
            MemberProcess(tmp_path, "n2", own, **{**FAST, "dLegerBindAddress": "127.0.0.2"})
        )
        assert other.process.wait() != 0
        assert f"has n2, this member, at {members['n1']}, where another member" in other.output
        assert GroupClient(members).append(record("two"))[0] > first
        assert all(member.process.poll() is None for member in right)


def test_a_copy_that_is_configured_for_another_place_ends_when_it_meets_the_others(
    tmp_path: Path,
) -> None:
    members = addresses(3)
    with ExitStack() as running:
        first, *_ = [running.enter_context(MemberProcess(tmp_path, me, members, **FAST))
                     for me in members]  # fmt: skip
        GroupClient(members).append(record("one"))
        (tmp_path / "copy").mkdir()
        moved = {**members, "n0": f"127.0.0.1:{free_port()}"}
        copy = running.enter_context(MemberProcess(tmp_path / "copy", "n0", moved, **FAST))
        assert copy.process.wait() != 0
        assert f"there, n0 is at {members['n0']}, where another process answers" in copy.output
        assert f"and here at {moved['n0']}" in copy.output
        assert "is leader" not in copy.output
        assert first.process.poll() is None


@pytest.mark.parametrize(
    ("key", "value"), [("mappedFileSizeCommitLog", 1 << 17), ("dLegerHeartbeatInterval", 300)]
)
def test_a_member_that_does_not_fit_to_the_others_ends_when_it_has_met_them(
    tmp_path: Path, key: str, value: int
) -> None:
    members = addresses(3)
    with ExitStack() as running:
        right = [running.enter_context(MemberProcess(tmp_path, me, members, **FAST))
                 for me in ("n0", "n1")]  # fmt: skip
        other = running.enter_context(
            MemberProcess(tmp_path, "n2", members, **{**FAST, key: value})
        )
        assert other.process.wait() != 0
        assert "This member does not fit into its group" in other.output
        assert f"and this member {value}. All members need the same" in other.output
        assert all(member.process.poll() is None for member in right)


def test_a_group_without_a_leader_tells_who_is_missing_and_when_a_member_may_vote(
    tmp_path: Path,
) -> None:
    members = addresses(3)
    with ExitStack() as running:
        first, _ = [running.enter_context(MemberProcess(tmp_path, me, members, **FAST))
                    for me in ("n0", "n1")]  # fmt: skip
        told = "n2 cannot be reached from here. An election needs 2 members that may vote"
        eventually(lambda: told in first.output, 60)
        assert "may vote when it has heard from enough of the others" in first.output
        assert "n0 may vote." not in first.output
        running.enter_context(MemberProcess(tmp_path, "n2", members, **FAST))
        eventually(lambda: "n0 may vote." in first.output, 60)
