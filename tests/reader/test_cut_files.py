"""Extension units, DLedger's files, checkpoints, cut at every byte: no row is wrong or lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmqstore_spark.errors import CorruptStoreError, RmqStoreError
from rmqstore_spark.layout.checkpoint import Checkpoint
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.options import ReadOptions
from tests.support.golden import load_records

Golden = Callable[[str], Path]
Copy = Callable[[str], Path]
Row = tuple[int, str | None]


def cuts(file: Path, *, every: int = 1, least: int = 0) -> Iterator[int]:
    """Leave fewer and fewer bytes of a file, and give how many; whole again at the end."""
    whole = file.read_bytes()
    written = len(whole.rstrip(b"\0"))
    lengths = {*range(least, written, every), *range(max(least, written - 200), written)}
    for length in sorted(lengths, reverse=True):
        with open(file, "r+b") as target:
            target.truncate(length)
        yield length
    file.write_bytes(whole)


def read(path: Path, topic: str, options: ReadOptions) -> list[Row]:
    with Store.open(path / "store") as store:
        return [
            (row["queueOffset"], row["tags"])
            for queue in store.queues([topic])
            for batch in store.read(topic, queue.queue_id, options=options)
            for row in batch.to_pylist()
        ]


def scanned(path: Path) -> list[int]:
    with Store.open(path / "store") as store:
        return [
            offset
            for batch in store.scan(options=ReadOptions(columns=("physicalOffset",)))
            for offset in batch["physicalOffset"].to_pylist()
        ]


@pytest.mark.parametrize("number", [0, 1])
def test_extension_units_cut_at_every_byte_hide_no_message(copy: Copy, number: int) -> None:
    path = copy("extcq")
    options = ReadOptions(columns=("queueOffset", "tags"), tags=frozenset({"TagA", "TagC"}))
    for queue in (0, 1):
        if queue:
            shutil.rmtree(path / "store" / "consumequeue" / "ExtTopic" / str(queue - 1))
        files = sorted((path / "store" / "consumequeue_ext" / "ExtTopic" / str(queue)).iterdir())
        expected = read(path, "ExtTopic", options)
        assert expected
        # One queue byte by byte; of the other some cuts.
        for _ in cuts(files[number], every=1 if queue else 61):
            assert read(path, "ExtTopic", options) == expected


@pytest.mark.parametrize(("number", "every"), [(2, 1), (1, 997)])
def test_a_dledger_log_that_ends_before_its_last_committed_entry_is_damage(
    copy: Copy, number: int, every: int
) -> None:
    path = copy("dledger")
    expected = scanned(path)
    file = sorted((path / "store" / "dledger-n0" / "data").iterdir())[number]
    for length in cuts(file, every=every):
        with pytest.raises(RmqStoreError) as caught:
            scanned(path)
        assert caught.value.args, length
        if number == 2:
            assert isinstance(caught.value, CorruptStoreError)
    assert scanned(path) == expected


def test_a_dledger_index_cut_at_many_bytes(copy: Copy) -> None:
    path = copy("dledger")
    expected = scanned(path)
    index = path / "store" / "dledger-n0" / "index" / ("0" * 20)
    with open(index, "r+b") as file:
        file.truncate(len(expected) * 32)  # what is written of 160 MB of zeros
    assert scanned(path) == expected
    for _ in cuts(index, every=5):
        with pytest.raises(CorruptStoreError, match="does not hold the unit of entry 1550"):
            Store.open(path / "store")
    assert scanned(path) == expected


@pytest.mark.parametrize("keep_backup", [True, False])
def test_a_dledger_checkpoint_cut_at_every_byte(
    copy: Copy, golden: Golden, keep_backup: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = copy("dledger")
    expected = [record.physical_offset for record in load_records(golden("dledger"))]
    checkpoint = path / "store" / "dledger-n0" / "checkpoint"
    if not keep_backup:
        checkpoint.with_suffix(".bak").unlink()
    stated = checkpoint.read_text().index("\n")
    for length in cuts(checkpoint):
        if length > stated or keep_backup:
            caplog.clear()
            assert scanned(path) == expected
            assert ("older copy" in caplog.text) == (length <= stated)
        else:
            with pytest.raises(CorruptStoreError, match="committedIndex"):
                Store.open(path / "store")


@pytest.mark.parametrize("name", ["tiny", "unclean-tail"])
def test_a_checkpoint_cut_at_every_byte(copy: Copy, name: str) -> None:
    path = copy(name)
    expected = scanned(path)
    checkpoint = path / "store" / "checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes().ljust(64, b"\0")[:64])
    for length in range(63, -1, -1):
        with open(checkpoint, "r+b") as file:
            file.truncate(length)
        with Store.open(path / "store") as store:
            if length < 24:
                with pytest.raises(CorruptStoreError, match=f"at least 24 bytes, not {length}"):
                    _ = store.checkpoint
            else:
                assert isinstance(store.checkpoint, Checkpoint)
        if length >= 24 or name == "tiny":  # a store that was closed is read without it
            assert scanned(path) == expected
        else:
            with pytest.raises(CorruptStoreError, match="can be read without it: remove the file"):
                scanned(path)
