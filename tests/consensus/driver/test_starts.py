"""What a member that was killed has left, and how its next start continues."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqstore_spark.consensus.actions import MemberRole, Restart
from rmqstore_spark.consensus.driver.disk.state_files import StateFiles
from rmqstore_spark.consensus.driver.driver import Driver
from rmqstore_spark.consensus.driver.group import MemberGroup
from rmqstore_spark.consensus.driver.wire import WireVote, decode
from rmqstore_spark.consensus.timing import Timing
from rmqstore_spark.errors import CorruptStoreError, FrameError, RmqStoreError
from tests.consensus.driver.members import record

SEGMENT = 1 << 16
FAST = Timing(heartbeat=100, vote_wait=100, round_gap=20, round_spread=50)
ALONE = MemberGroup("orders", "n0", {"n0": "127.0.0.1:1"})


def started(store: Path) -> Driver:
    return Driver(ALONE, str(store), SEGMENT, 1e9, answer=lambda *_: None, timing=FAST)


async def opened(store: Path) -> Driver:
    driver = started(store)
    while driver.member.role is not MemberRole.LEADER:  # alone, it elects itself
        await asyncio.sleep(0.01)
    return driver


async def append(driver: Driver, count: int) -> None:
    done = [driver.append(record(f"message {number}"))[1] for number in range(count)]
    assert all(await asyncio.gather(*done))


def test_a_start_flushes_what_a_killed_process_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> list[str]:
        driver = await opened(tmp_path)
        await append(driver, 5)
        await driver.close()
        flushed: list[str] = []
        fdatasync = os.fdatasync

        def noted(descriptor: int) -> None:
            flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            fdatasync(descriptor)

        monkeypatch.setattr(os, "fdatasync", noted)
        again = started(tmp_path)
        found = list(flushed)  # before it has answered anybody
        await again.close()
        return found

    data = tmp_path / "dledger-n0" / "data" / f"{0:020d}"
    assert str(data) in asyncio.run(run())


def test_a_kill_after_the_log_was_begun_again(tmp_path: Path) -> None:
    """The removal of files may not be on disk, or be there before there is a new entry."""

    async def run(comes_back: bool) -> int:
        driver = await opened(tmp_path)
        await append(driver, 5)
        await driver.close()
        folder, kept = tmp_path / "dledger-n0", tmp_path / "kept"
        shutil.copytree(folder / "data", kept)
        assert StateFiles(str(folder)).saved_commit >= 5
        driver = started(tmp_path)
        driver.member.actions.append(Restart(1 << 20))
        driver.act()
        state = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        driver.fail(RmqStoreError("killed"))
        assert str(driver.failed.exception()) == "killed"
        await driver.close()
        for name, content in state.items():  # as they were when it was killed
            (folder / name).write_bytes(content)
        if comes_back:
            shutil.copytree(kept, folder / "data", dirs_exist_ok=True)
        shutil.rmtree(kept)
        again = await opened(tmp_path)
        last = again.log.last
        await again.close()
        return last

    assert asyncio.run(run(comes_back=False)) == 0  # the record of its term alone
    assert asyncio.run(run(comes_back=True)) > 5


def without(*names: str) -> Callable[[Path], None]:
    """Removes files and folders of a member."""

    def remove(folder: Path) -> None:
        for path in map(folder.joinpath, names):
            path.unlink() if path.is_file() else shutil.rmtree(path)

    return remove


def damaged(folder: Path) -> None:
    """Loses the commit index, and a part of the first entry."""
    (folder / "checkpoint").unlink()
    with open(folder / "data" / f"{0:020d}", "r+b") as file:
        file.seek(60)
        file.write(b"\xff" * 20)


@pytest.mark.parametrize(
    "lose", [without("data", "index", "checkpoint"), without("data", "checkpoint"), damaged]
)
def test_entries_that_are_gone_without_their_term_are_missed(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    """Their member has acknowledged them: its vote could make a leader of one that lacks them."""

    async def run() -> None:
        driver = await opened(tmp_path)
        await append(driver, 5)
        await driver.close()
        folder = tmp_path / "dledger-n0"
        lose(folder)
        left = {path: path.read_bytes() for path in folder.glob("data/*")}
        with pytest.raises(CorruptStoreError, match=r"had entries.*Move the folder") as error:
            started(tmp_path)
        assert error.value.file == str(folder / "data")
        assert {path: path.read_bytes() for path in folder.glob("data/*")} == left

    asyncio.run(run())


@pytest.mark.parametrize("term", [1 << 62, (1 << 63) - 1, -2])
def test_a_term_that_leaves_no_room_for_others_is_refused(term: int) -> None:
    with pytest.raises(FrameError, match="a term is"):
        decode(WireVote, b'{"term":%d}' % term)
