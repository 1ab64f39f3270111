"""Members whose configurations contradict each other: at a start, or when they meet."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from rmqstore_spark.consensus.driver.group import MemberGroup
from rmqstore_spark.errors import OptionError
from tests.consensus.driver.members import GroupClient, MemberProcess, addresses, bodies, record
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
    ],
)
def test_what_cannot_be_a_group_is_refused(name: str, me: str, peers: str, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        MemberGroup.of(name, me, peers)


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
        eventually(lambda: advice in other.output, 60)
        eventually(lambda: all(advice in member.output for member in ours), 60)
        assert "is refused: it is for the group" in "".join(each.output for each in (*ours, other))
        assert not other.may_vote
        other.kill()
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


def test_another_segment_size_is_told_when_they_meet_and_its_entries_are_refused(
    tmp_path: Path,
) -> None:
    members = addresses(3)
    with ExitStack() as running:
        right = [running.enter_context(MemberProcess(tmp_path, me, members, **FAST))
                 for me in ("n0", "n1")]  # fmt: skip
        other = running.enter_context(
            MemberProcess(tmp_path, "n2", members, mappedFileSizeCommitLog=1 << 17, **FAST)
        )
        advice = f"has mappedFileSizeCommitLog={1 << 17}, and this member {1 << 20}"
        for member in right:
            eventually(lambda member=member: advice in member.output, 60)
        advice = f"has mappedFileSizeCommitLog={1 << 20}, and this member {1 << 17}"
        eventually(lambda: advice in other.output, 60)
        # A new group needs the answers of all.
        eventually(lambda: all(each.may_vote for each in (*right, other)), 60)
        other.kill()
        entries = [record("x" * 50_000, n) for n in range(5)]  # more than a file of the other
        last = GroupClient(members).append(*entries)[-1]
        other.start()
        refused = "all members need the same mappedFileSizeCommitLog"
        eventually(lambda: refused in other.output, 60)
        assert other.committed < last
        eventually(lambda: all(member.committed >= last for member in right), 60)
        kept = bodies(other.data)
        assert kept == bodies(right[0].data)[: len(kept)]  # what does not fit is not there
        assert len(kept) <= last
