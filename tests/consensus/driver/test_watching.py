"""Who is told that entries are committed finds them in the files, as any reader of the store."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rmqstore_spark.consensus.actions import MemberRole, RoleChanged
from rmqstore_spark.consensus.driver.group import MemberGroup
from rmqstore_spark.consensus.driver.running import RunningMember
from rmqstore_spark.consensus.timing import Timing
from rmqstore_spark.reader import Store
from rmqstore_spark.remoting.addresses import bound_port
from tests.consensus.driver.members import GROUP, SEGMENT, record
from tests.support.processes.ports import free_port

ENTRIES = 20


class Watcher:
    """Looks into the files whenever entries are committed.

    Attributes:
        ends: where committed entries end, by the member and by the files, each time.
    """

    def __init__(self, store: Path) -> None:
        self.ends: list[tuple[int, int]] = []
        self.leads = asyncio.Event()
        self._store = store

    def committed(self, begin: int, end: int) -> None:
        """Compare."""
        with Store.open(self._store) as store:
            self.ends.append((end, store.log.file_end))

    def role_changed(self, change: RoleChanged, end: int) -> None:
        """Note that the member leads."""
        if change.role is MemberRole.LEADER:
            self.leads.set()

    def began_again(self) -> None:
        """Do nothing: it does not happen to a member alone."""


def test_what_is_told_as_committed_is_so_in_the_files(tmp_path: Path) -> None:
    watcher = asyncio.run(watched(tmp_path / "store"))
    assert len(watcher.ends) > 1
    assert all(told == found for told, found in watcher.ends)


async def watched(store: Path) -> Watcher:
    """Let a member alone commit entries."""
    store.mkdir()
    watcher = Watcher(store)
    port = free_port()
    group = MemberGroup.of(GROUP, "n0", f"n0-127.0.0.1:{port}")
    member = RunningMember(
        group, str(store), SEGMENT, float("inf"), timing=Timing.of(50), watcher=watcher
    )
    ended = asyncio.Event()
    serving = asyncio.ensure_future(
        member.serve(bound_port("127.0.0.1", port), (), ended, lambda _: None)
    )
    await watcher.leads.wait()
    for number in range(ENTRIES):
        _, committed = member.driver.append(record(f"{number}", number))
        assert await committed
    ended.set()
    await serving
    return watcher
