"""Queues, extension units, DLedger's files, checkpoints: cut at every byte, every byte changed.

What comes is right, or there is an error with words; what was cut is not taken for the end. (The
CommitLog itself: test_damage; the index: test_keyindex.)
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from rmqstore_spark.errors import CorruptStoreError, RmqStoreError
from rmqstore_spark.layout.checkpoint import Checkpoint
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.options import ReadOptions
from tests.support.sampling import one_in
from tests.support.stores.expected import expected_rows, expected_scan, queue_key
from tests.support.stores.golden import load_records

Golden = Callable[[str], Path]
Copy = Callable[[str], Path]
Row = tuple[int, str | None]

TERM = range(24, 32)
"""Bytes of a unit of DLedger's index that say nothing of where its entry lies."""


def cuts(file: Path, *, every: int = 1, least: int = 0) -> Iterator[int]:
    """Leave fewer and fewer bytes of a file, and give how many; whole again at the end.

    Every third of the last 200 bytes is cut away too, from one that changes with the seed.
    """
    whole = file.read_bytes()
    written = len(whole.rstrip(b"\0"))
    lengths = {*range(least, written, every), *one_in(3, range(max(least, written - 200), written))}
    for length in sorted(lengths, reverse=True):
        with open(file, "r+b") as target:
            target.truncate(length)
        yield length
    file.write_bytes(whole)


def changes(file: Path, places: Iterable[int]) -> Iterator[int]:
    """Change one byte of a file after the other, in three ways, and give its place."""
    with open(file, "r+b") as target:
        for place in places:
            target.seek(place)
            (held,) = target.read(1)
            for flip in (0x01, 0x80, 0xFF):
                target.seek(place)
                target.write(bytes([held ^ flip]))
                target.flush()
                yield place
            target.seek(place)
            target.write(bytes([held]))


def read(path: Path, topic: str, options: ReadOptions) -> list[Row]:
    with Store.open(path / "store") as store:
        return [
            (row["queueOffset"], row["tags"])
            for queue in store.queues([topic])
            for batch in store.read(topic, queue.queue_id, options=options)
            for row in batch.to_pylist()
        ]


def all_rows(path: Path, options: ReadOptions) -> list[dict[str, Any]]:
    with Store.open(path / "store", broker_name="b") as store:
        return [
            {
                name: dict(value) if name == "properties" else value
                for name, value in row.items()
                if name != "brokerName"
            }
            for queue in store.queues()
            for batch in store.read(queue.topic, queue.queue_id, options=options)
            for row in batch.to_pylist()
        ]


def scanned(path: Path, mode: Literal["FAILFAST", "DROPMALFORMED"] = "FAILFAST") -> list[int]:
    options = ReadOptions(columns=("physicalOffset",), mode=mode)
    with Store.open(path / "store") as store:
        return [
            offset
            for batch in store.scan(options=options)
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
        for _ in cuts(files[number], every=3 if queue else 61):
            assert read(path, "ExtTopic", options) == expected


@pytest.mark.parametrize(("number", "every"), [(2, 3), (1, 997)])
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
        with pytest.raises(
            CorruptStoreError, match=r"no unit for the last committed entry \(1550\)"
        ):
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
            with pytest.raises(
                CorruptStoreError, match="Remove the file: a store can be read without it"
            ):
                scanned(path)


# ---- every byte changed --------------------------------------------------------------------------


@pytest.mark.threat("Damage never becomes a wrong row")
@pytest.mark.parametrize("options", [ReadOptions(), ReadOptions(mode="DROPMALFORMED")])
def test_every_byte_of_a_queue_changed(copy: Copy, golden: Golden, options: ReadOptions) -> None:
    path = copy("tiny")
    right = {queue_key(row): row for row in expected_rows(golden("tiny"))}
    files = sorted((path / "store" / "consumequeue" / "T" / "0").iterdir())
    for file in (files[0], files[1], files[-1]):
        for place in changes(file, range(len(file.read_bytes().rstrip(b"\0")))):
            try:
                rows = all_rows(path, options)
            except RmqStoreError:
                rows = []
                assert options.mode == "FAILFAST" or file == files[-1]
            assert all(row == right[queue_key(row)] for row in rows)
            if options.mode == "DROPMALFORMED" and file != files[-1]:
                assert len(rows) >= len(right) - 1
            if place % 20 < 12 and options.mode == "FAILFAST" and file != files[-1]:
                assert rows == []  # place and size of a record are known to be wrong
    assert len(all_rows(path, options)) == len(right)


def test_every_byte_of_an_extension_unit_changed(copy: Copy) -> None:
    path = copy("extcq")
    options = ReadOptions(columns=("queueOffset", "tags"), tags=frozenset({"TagA", "TagC"}))
    expected = read(path, "ExtTopic", options)
    file = path / "store" / "consumequeue_ext" / "ExtTopic" / "0" / ("0" * 20)
    unit = int.from_bytes(file.read_bytes()[:2], "big")
    for place in changes(file, range(3 * unit)):
        found = read(path, "ExtTopic", options)
        # A wrong hash code hides its message, and no other change hides any.
        assert len(found) >= len(expected) - (2 <= place % unit < 10)
        assert set(found) <= set(expected)
        assert found == sorted(found, key=expected.index)


@pytest.mark.threat("Damage never becomes a wrong row")
def test_every_byte_of_dledgers_headers_changed(copy: Copy, golden: Golden) -> None:
    path = copy("dledger")
    right = {row["physicalOffset"]: row for row in expected_scan(golden("dledger"))}
    offsets = sorted(right)
    file = path / "store" / "dledger-n0" / "data" / ("0" * 20)
    number = 3
    for place in changes(file, range(offsets[number] - 48, offsets[number])):
        found = scanned(path, mode="DROPMALFORMED")
        assert found in (offsets, offsets[:number] + offsets[number + 1 :]), place
    index = path / "store" / "dledger-n0" / "index" / ("0" * 20)
    last = 32 * (len(offsets) - 1)
    for place in changes(index, range(last - 32, last + 32)):
        if place < last or place - last in TERM:  # only the last committed entry's is looked at
            assert scanned(path) == offsets
        else:
            with pytest.raises(CorruptStoreError, match="dledger-n0"):
                scanned(path)


@pytest.mark.parametrize("name", ["tiny", "unclean-tail"])
def test_every_byte_of_a_checkpoint_changed(copy: Copy, name: str) -> None:
    path = copy(name)
    expected = scanned(path)
    for _ in changes(path / "store" / "checkpoint", range(48)):
        try:
            found = scanned(path)
        except RmqStoreError:
            assert name != "tiny"  # a store that was closed does not need it
            continue
        assert found == expected if name == "tiny" else set(found) >= set(expected[:-1])
