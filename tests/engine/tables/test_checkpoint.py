from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqstore_spark.engine.tables.checkpoint import CheckpointKeeper
from rmqstore_spark.errors import RmqStoreError, StoreWriteError
from rmqstore_spark.layout.checkpoint import CHECKPOINT_SIZE, Checkpoint


def test_times_never_go_back(tmp_path: Path) -> None:
    keeper = CheckpointKeeper(str(tmp_path))
    keeper.advance(physic=10, logics=8, index=5)
    keeper.advance(physic=9, logics=9)
    assert keeper.value == Checkpoint(10, 9, 5)


def test_a_new_one_is_written_whole(tmp_path: Path) -> None:
    keeper = CheckpointKeeper(str(tmp_path))
    assert not keeper.existed
    keeper.advance(physic=1_700_000_000_000)
    keeper.write()
    data = (tmp_path / "checkpoint").read_bytes()
    assert len(data) == CHECKPOINT_SIZE
    assert Checkpoint.decode(data).physic_msg_timestamp == 1_700_000_000_000
    assert (tmp_path / "checkpoint").stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [tmp_path / "checkpoint"]


def test_it_goes_on_with_what_a_broker_wrote(golden: Callable[[str], Path], tmp_path: Path) -> None:
    data = (golden("v5basic") / "store" / "checkpoint").read_bytes()
    (tmp_path / "checkpoint").write_bytes(data)
    before = Checkpoint.decode(data)
    keeper = CheckpointKeeper(str(tmp_path))
    assert keeper.existed
    assert keeper.value == before
    keeper.write()
    assert (tmp_path / "checkpoint").read_bytes() == data
    keeper.advance(logics=before.logics_msg_timestamp + 5)
    keeper.write()
    after = CheckpointKeeper(str(tmp_path)).value
    assert after.logics_msg_timestamp == before.logics_msg_timestamp + 5
    assert after.confirm_phy_offset == before.confirm_phy_offset


@pytest.mark.parametrize("data", [b"", b"short", bytes(100)])
def test_one_of_another_size_is_replaced(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "checkpoint").write_bytes(data)
    keeper = CheckpointKeeper(str(tmp_path))
    assert not keeper.existed
    keeper.advance(physic=3)
    keeper.write()
    assert (tmp_path / "checkpoint").read_bytes() == Checkpoint(3).encode()


def test_a_failure_says_which_file(tmp_path: Path) -> None:
    keeper = CheckpointKeeper(str(tmp_path))
    keeper.write()
    keeper.advance(physic=1)
    (tmp_path / "checkpoint").unlink()
    with pytest.raises(StoreWriteError, match="checkpoint could not be written"):
        keeper.write()


def test_several_threads_move_it_on(tmp_path: Path) -> None:
    keeper = CheckpointKeeper(str(tmp_path))

    def work(first: int) -> None:
        for time in range(first, 2000, 4):
            keeper.advance(physic=time, logics=time, index=time)
            if time % 100 == first:
                keeper.write()

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keeper.write()
    assert CheckpointKeeper(str(tmp_path)).value == Checkpoint(1999, 1999, 1999)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_not_a_file_is_named(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "checkpoint")
    with pytest.raises(RmqStoreError, match=r"checkpoint is not a plain file"):
        CheckpointKeeper(str(tmp_path))
