"""The end of the log is damaged: what a start, `verify` and `recover --cut` make of it.

Each state of a store meets each form of damage. What must come out follows from what was promised
(docs/reliability.md, promise 4): whatever was flushed, or lay in a segment that is gone, is missed;
what a power cut can have taken under ASYNC_FLUSH is not, but there is a warning.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.engine.log.flush import load_mark
from rmqstore_spark.errors import CorruptStoreError, RmqStoreError
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.options import ReadOptions
from rmqstore_spark.verify import verify
from tests.fault.messages import TOPICS, block
from tests.fault.stores import NOW, Row, rows_of, settings
from tests.support.processes import forked
from tests.support.stores.storing import as_killed
from tests.support.waiting import eventually

SEGMENT = 16384
STATES = ("clean-SYNC", "clean-ASYNC", "killed-SYNC", "killed-ASYNC", "killed-unflushed")
"""Of the last one, nothing was flushed since before its last segment began."""


def segments(store: Path) -> list[Path]:
    """The files of the log, in their order."""
    return sorted(path for path in (store / "commitlog").iterdir() if path.name.isdigit())


def make(folder: Path, flush: str, *, lag: bool = False) -> tuple[Path, Path, int]:
    """Write a store of five segments; returns it closed, killed, and how many rows were flushed."""
    given = settings(flushDiskType=f"{flush}_FLUSH", flushIntervalCommitLog=3_600_000)
    closed, killed = folder / "closed", folder / "killed"
    times = iter(range(1_700_000_000_000, NOW, 10_000))
    flushed = 0
    with StoreWriter.open(closed, given, clock=lambda: next(times)) as store:
        for topic in TOPICS:
            store.create_topic(topic, write_queue_nums=4)
        number = 0
        while store.published_end < 4.5 * SEGMENT:
            if not lag or store.published_end < 3.5 * SEGMENT:
                store.flush()
                flushed = number
            assert store.put(block(number, 9)).ok
            number += 9
        if not lag:
            flushed = number
            if flush == "ASYNC":
                store.flush()
        eventually(lambda: store.stats()["dispatchBehindBytes"] == 0)
        as_killed(closed, killed)
    return closed, killed, flushed


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, int]]:
    """Each state, and how many of its rows were flushed; only copies are changed."""
    found = {}
    for flush in ("SYNC", "ASYNC"):
        closed, killed, flushed = make(tmp_path_factory.mktemp(flush), flush)
        found[f"clean-{flush}"], found[f"killed-{flush}"] = (closed, flushed), (killed, flushed)
    _, killed, flushed = make(tmp_path_factory.mktemp("lag"), "ASYNC", lag=True)
    found["killed-unflushed"] = killed, flushed
    return found


def missing(store: Path) -> None:
    segments(store)[-1].unlink()


def empty(store: Path) -> None:
    segments(store)[-1].write_bytes(b"")


def cut(store: Path) -> None:
    path = segments(store)[-1]
    path.write_bytes(path.read_bytes()[:2000])


def zeroed(store: Path) -> None:
    segments(store)[-1].write_bytes(bytes(SEGMENT))


def other_bytes(store: Path) -> None:
    segments(store)[-1].write_bytes(b"replaced" * (SEGMENT // 8))


def older_copy(store: Path) -> None:
    older, last = segments(store)[1], segments(store)[-1]
    last.write_bytes(older.read_bytes())


def several_missing(store: Path) -> None:
    for path in segments(store)[-3:]:
        path.unlink()


def all_missing(store: Path) -> None:
    for path in segments(store):
        path.unlink()


def all_empty(store: Path) -> None:
    for path in segments(store):
        path.write_bytes(b"")


FORMS = (
    missing, empty, cut, zeroed, other_bytes, older_copy, several_missing, all_missing, all_empty,
)  # fmt: skip
BY_A_POWER_CUT = (cut, zeroed, other_bytes)
"""What unflushed bytes may look like afterwards."""


def lose(store: Path, *names: str) -> None:
    for name in names:
        path = store / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def content(store: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in store.rglob("*") if p.is_file() and p.name != "lock"}


def in_log(store: Path) -> list[Row]:
    return sorted(rows_of(store), key=lambda row: row[3])


def reopened(store: Path, *, cut: bool = False) -> tuple[StoreWriter, list[Row]]:
    """Open, put something, close; returns the writer, and the rows that were there before."""
    with StoreWriter.open(store, settings(), clock=lambda: NOW, cut=cut) as writer:
        assert writer.put(block(9000, 1)).ok
    rows = in_log(store)
    assert rows[-1][4].startswith(b"%012d" % 9000)
    with Store.open(store) as reader:
        report = verify(reader)
        assert report.ok, report.problems
    return writer, rows[:-1]


def assert_refused(store: Path) -> str:
    """A start is refused, says the remedy, and changes nothing; `verify` has found it, too."""
    with Store.open(store) as reader:
        assert not verify(reader).ok
    before = content(store)
    with pytest.raises(CorruptStoreError) as caught:
        StoreWriter.open(store, settings(), clock=lambda: NOW)
    assert content(store) == before
    assert "Restore" in caught.value.remedy
    assert "recover --cut" in caught.value.remedy
    assert "/commitlog" in caught.value.file
    return str(caught.value)


@pytest.mark.parametrize(
    "lost", ["", "consumequeue", "index", "consumequeue index", "consumequeue index rmqstore"]
)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("state", STATES)
def test_promise_4_a_log_that_lost_its_end(
    stores: dict[str, tuple[Path, int]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    state: str,
    form: Callable[[Path], None],
    lost: str,
) -> None:
    origin, flushed = stores[state]
    rows = in_log(origin)
    store = Path(shutil.copytree(origin, tmp_path / "store"))
    form(store)
    lose(store, *lost.split())
    last = int(segments(origin)[-1].name)
    are_queues_lost = "consumequeue" in lost
    if state == "killed-unflushed" and (
        form in BY_A_POWER_CUT or (form in (missing, empty) and are_queues_lost)
    ):
        with caplog.at_level(logging.WARNING, "rmqstore_spark"):
            writer, found = reopened(store)
        assert found == rows[: len(found)]
        assert len(found) >= flushed  # what was on disk is there
        gone = writer.recovery.lost
        if not are_queues_lost:
            assert gone is not None
            assert gone.entries == len(rows) - len(found) > 0
            assert f"{gone.entries:,} queue entries" in caplog.text
            assert "stored after 20" in caplog.text
        return
    text = assert_refused(store)
    if form is missing:
        assert f"{last:020}" in text
        assert "missing" in text
    if form is empty:
        assert "0 bytes" in text
    kept = [row for row in rows if row[3] < last or (form is cut and row[3] < last + 2000)]
    if form is several_missing:
        kept = [row for row in rows if row[3] < 2 * SEGMENT]
    elif form in (all_missing, all_empty):
        kept = []
    with caplog.at_level(logging.WARNING, "rmqstore_spark"):
        writer, found = reopened(store, cut=True)
    assert found == kept[: len(found)]
    assert len(kept) - len(found) <= 1  # the record that the cut went through
    gone = writer.recovery.lost
    assert gone is not None
    if not are_queues_lost:
        assert gone.entries == len(rows) - len(found)
        assert f"{gone.entries:,} queue entries" in text
        assert f"{gone.entries:,} queue entries" in caplog.text
        assert f"{TOPICS[0]}: {sum(row[0] == TOPICS[0] for row in rows[len(found) :])}" in text
    saved = sorted((store / "rmqstore" / "cut").glob("*/[0-9]*"))
    assert bool(saved) == (form in (cut, other_bytes, older_copy))
    assert reopened_again(store) == found  # also after a kill: it is not missed a second time


def reopened_again(store: Path) -> list[Row]:
    (store / "abort").touch()
    with StoreWriter.open(store, settings(), clock=lambda: NOW) as writer:
        assert writer.recovery.lost is None
    return in_log(store)[:-1]


_OPEN = """
import sys
from rmqstore_spark.engine import StoreWriter
from tests.fault.stores import settings
StoreWriter.open(sys.argv[1], settings()).close()
"""


@pytest.mark.fault
@pytest.mark.parametrize("place", ["recovery.after_wipe", "recovery.before_checkpoint"])
def test_promise_3_a_recovery_is_killed_that_has_removed_what_queues_name(
    stores: dict[str, tuple[Path, int]], tmp_path: Path, place: str
) -> None:
    """A power cut took what was not flushed: the end of a segment, and all of the next."""
    origin, flushed = stores["killed-unflushed"]
    store = Path(shutil.copytree(origin, tmp_path / "store"))
    mark = load_mark(str(store / "rmqstore" / "flushed"))
    assert mark is not None
    for path in segments(store):
        kept = path.read_bytes()[: max(0, mark.offset - int(path.name))]
        path.write_bytes(kept.ljust(SEGMENT, b"\0"))
    assert mark.offset < int(segments(store)[-1].name)
    killed = forked.run(
        [sys.executable, "-c", _OPEN, str(store)], env={**os.environ, "RMQSTORE_FAILPOINT": place}
    )
    assert killed.returncode == -9
    assert len(segments(store)) < len(segments(origin))
    _, found = reopened(store)
    assert found == in_log(origin)[:flushed]
    assert not (store / "rmqstore" / "reached").exists()


def scanned(store: Path) -> list[int]:
    """Where the rows of users are that a scan of the log finds."""
    options = ReadOptions(columns=("topic", "physicalOffset"))
    with Store.open(store) as reader:
        return [
            row["physicalOffset"]
            for batch in reader.scan(options=options)
            for row in batch.to_pylist()
            if row["topic"] in TOPICS
        ]


def whole(_: Path) -> None:
    """Nothing is missing."""


@pytest.mark.parametrize("form", [whole, *FORMS], ids=lambda form: form.__name__)
@pytest.mark.parametrize("state", STATES)
def test_promise_4_a_reader_passes_over_nothing_that_was_flushed(
    stores: dict[str, tuple[Path, int]],
    tmp_path: Path,
    state: str,
    form: Callable[[Path], None],
) -> None:
    origin, flushed = stores[state]
    places = [row[3] for row in in_log(origin)]
    store = Path(shutil.copytree(origin, tmp_path / "store"))
    form(store)
    for read in (lambda path: [row[3] for row in in_log(path)], scanned):
        try:
            found = sorted(read(store))
        except RmqStoreError as error:
            assert form is not whole
            assert str(store) in str(error)  # noqa: PT017 - either is right
        else:
            assert found == places[: len(found)]
            assert len(found) >= flushed
