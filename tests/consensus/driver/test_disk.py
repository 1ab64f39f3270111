"""A member whose disk is full, and one whose disk is not."""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.consensus.driver.members import GroupClient, MemberProcess, addresses, record
from tests.support.waiting import eventually

DISK_FULL = 415


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", str(path)], check=True)
    yield path
    subprocess.run(["umount", str(path)], check=True)


@pytest.mark.fault
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root")
def test_a_full_disk_refuses_entries_until_there_is_room(disk: Path) -> None:
    members = addresses(1)
    client = GroupClient(members)
    body = base64.b64encode(record("two", 1)).decode()
    with MemberProcess(disk, "n0", members, dLegerHeartbeatInterval=100) as member:
        client.append(record("one"))
        with (disk / "ballast").open("wb") as ballast:
            os.posix_fallocate(ballast.fileno(), 0, 160 << 20)
        assert client.ask("n0", 50001, body=body)["code"] == DISK_FULL
        (disk / "ballast").unlink()
        last = client.append(record("two", 1))[0]
        eventually(lambda: member.committed >= last)
        member.stop()
