from __future__ import annotations

import os
import resource
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from rmqstore_spark.engine.dispatch import queue_files
from rmqstore_spark.engine.dispatch.queues import ConsumeQueues
from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.layout.queues.consumequeue import CONSUME_QUEUE
from rmqstore_spark.layout.queues.format import Entries
from rmqstore_spark.reader import Store
from tests.support.stores.golden import load_entries, load_meta

Golden = Callable[[str], Path]


@pytest.fixture
def queues(tmp_path: Path) -> Iterator[ConsumeQueues]:
    made = ConsumeQueues(str(tmp_path), CONSUME_QUEUE, file_size=10 * CONSUME_QUEUE.size)
    yield made
    made.close()


def entries(first: int, count: int) -> Entries:
    """Entries whose content tells the offsets `first`, `first` + 1, ..."""
    numbers = np.arange(first, first + count)
    return CONSUME_QUEUE.encode(numbers * 1000, numbers % 500 + 100, numbers - 7)


def files(store: Path, route: str = "T/0") -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((store / "consumequeue" / route).iterdir())}


@pytest.mark.parametrize("name", ["basic", "tiny", "flags", "trimmed"])
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_files_are_those_of_a_broker(golden: Golden, tmp_path: Path, name: str, step: int) -> None:
    """Byte for byte, fillers and unused rest included, whatever is written at once."""
    file_size = load_meta(golden(name)).consumequeue_file_size
    queues = ConsumeQueues(str(tmp_path), CONSUME_QUEUE, file_size=file_size)
    for (topic, queue_id), listed in load_entries(golden(name)).items():
        fields = [(e.physical_offset, e.size, e.tags_code) for e in listed]
        rows = np.array(fields, CONSUME_QUEUE.dtype)
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            queues.append(topic, queue_id, part, listed[first].offset)
    queues.close()
    compared = 0
    for route in load_entries(golden(name)):
        folder = golden(name) / "store" / "consumequeue" / route[0] / str(route[1])
        made = tmp_path / "consumequeue" / route[0] / str(route[1])
        for path in made.iterdir():
            if name == "trimmed" and path.name == min(os.listdir(made)):
                continue  # the broker's own has the expired entries where ours has fillers
            assert path.read_bytes() == (folder / path.name).read_bytes(), path
            compared += 1
    assert compared


def test_a_queue_that_begins_late_is_filled_up_to_there(
    queues: ConsumeQueues, tmp_path: Path
) -> None:
    queues.append("T", 0, entries(23, 4), 23)
    assert queues.ranges() == {"T": {0: (23, 27)}}
    held = CONSUME_QUEUE.decode(files(tmp_path)[f"{20 * CONSUME_QUEUE.size:020}"])
    assert CONSUME_QUEUE.is_filler(held).tolist() == [True] * 3 + [False] * 7
    assert held[3:7].tobytes() == entries(23, 4).tobytes()


def test_lost_entries_become_fillers_and_others_stay(queues: ConsumeQueues, tmp_path: Path) -> None:
    queues.append("T", 0, entries(0, 9), 0)
    queues.rewind("T", 0, 3)
    queues.append("T", 0, entries(12, 1), 12)
    held = CONSUME_QUEUE.decode(b"".join(files(tmp_path).values()))
    assert held[:9].tobytes() == entries(0, 9).tobytes()
    assert CONSUME_QUEUE.is_filler(held[9:12]).all()
    assert queues.max_offset("T", 0) == 13


def test_reconcile_writes_only_what_differs(queues: ConsumeQueues, tmp_path: Path) -> None:
    queues.append("T", 0, entries(0, 25), 0)
    before = files(tmp_path)
    queues.rewind("T", 0, 5)
    assert queues.reconcile("T", 0, entries(5, 20), 5) == 0
    assert queues.max_offset("T", 0) == 25
    changed = entries(5, 20)
    changed["size"][[0, 7]] += 1
    assert queues.reconcile("T", 0, changed, 5) == 2
    assert files(tmp_path) != before
    assert queues.reconcile("T", 0, entries(25, 3), 25) == 3


def test_trim_wipes_what_is_behind_the_end(queues: ConsumeQueues, tmp_path: Path) -> None:
    queues.append("T", 0, entries(0, 35), 0)
    queues.append("T", 1, entries(0, 5), 0)
    queues.rewind("T", 0, 12)
    assert queues.trim() == 23
    held = files(tmp_path)
    assert sorted(held) == [f"{0:020}", f"{200:020}"]
    assert held[f"{200:020}"] == entries(10, 2).tobytes() + bytes(160)
    assert queues.trim() == 0
    queues.append("T", 0, entries(12, 30), 12)
    assert queues.max_offset("T", 0) == 42


def test_an_entry_that_ends_in_zeros_is_wiped_whole(queues: ConsumeQueues, tmp_path: Path) -> None:
    rows = entries(0, 4)
    rows["tagsCode"] = 0
    queues.append("T", 0, rows, 0)
    queues.rewind("T", 0, 1)
    assert queues.trim() == 3
    assert not any(files(tmp_path)[f"{0:020}"][CONSUME_QUEUE.size :])


def test_few_files_are_open_at_once(tmp_path: Path) -> None:
    queues = ConsumeQueues(str(tmp_path), CONSUME_QUEUE, file_size=100, open_files=5)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(40):
        queues.append("T", number, entries(0, 12), 0)
        assert len(os.listdir("/proc/self/fd")) <= before + 5
    queues.flush()
    assert len(os.listdir("/proc/self/fd")) <= before + 5
    queues.close()
    assert all(queues.max_offset("T", number) == 12 for number in range(40))


@pytest.mark.parametrize(("limit", "most"), [(600, 256), (2_000, 500)])
def test_as_many_files_are_open_as_the_process_may_have(
    tmp_path: Path, limit: int, most: int
) -> None:
    """A queue whose file has to be opened again takes three times as long."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
    try:
        queues = ConsumeQueues(str(tmp_path), CONSUME_QUEUE, file_size=100)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for number in range(510):
        queues.append("T", number, entries(0, 1), 0)
    assert len(open_below(tmp_path)) == most
    queues.close()


def test_files_of_other_topics_stay_open_when_one_is_dropped(
    queues: ConsumeQueues, tmp_path: Path
) -> None:
    for topic in ("T", "T2"):
        for number in range(3):
            queues.append(topic, number, entries(0, 1), 0)
    queues.drop(["T"])
    assert sorted(open_below(tmp_path / "consumequeue")) == ["T2/0", "T2/1", "T2/2"]


def open_below(folder: Path) -> list[str]:
    """The folders of the files below a folder that this process has open.

    A file that began without a name keeps the one that it has had then.
    """
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            path = Path(os.readlink(f"/proc/self/fd/{number}"))
            if path.is_relative_to(folder):
                found.append(str(path.parent.relative_to(folder)))
    return found


def test_what_is_flushed_can_be_read(queues: ConsumeQueues, tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "config").mkdir()
    queues.append("T", 0, entries(0, 15), 0)
    queues.flush()
    with Store.open(tmp_path) as store:
        assert store.queue("T", 0).entries(0, 15).tobytes() == entries(0, 15).tobytes()
    stat = (tmp_path / "consumequeue" / "T" / "0" / f"{0:020}").stat()
    assert stat.st_mode & 0o777 == 0o600


@pytest.mark.parametrize("count", [3, 300])  # one after the other, and many together
def test_each_file_and_folder_is_flushed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    flushed: list[str] = []
    broken = f"{count - 1}/{0:020}"

    def sync(path: str) -> None:
        flushed.append(path)
        if path.endswith(broken):
            raise StoreWriteError("the disk is broken")

    monkeypatch.setattr(queue_files, "sync_file", sync)
    monkeypatch.setattr(queue_files, "sync_folder", flushed.append)
    queues = ConsumeQueues(str(tmp_path), CONSUME_QUEUE, file_size=100)
    for number in range(count):
        queues.append("T", number, entries(0, 3), 0)
    folder = str(tmp_path / "consumequeue")
    folders = [folder, f"{folder}/T", *(f"{folder}/T/{number}" for number in range(count))]
    files = [f"{folder}/T/{number}/{0:020}" for number in range(count)]
    for _ in range(2):  # what fails once is not taken as flushed
        with pytest.raises(StoreWriteError, match="the disk is broken"):
            queues.flush()
    broken = "none"
    flushed.clear()
    queues.flush()
    assert Counter(flushed) == Counter(files + folders)
    flushed.clear()
    queues.flush()
    assert flushed == []
    queues.append("T", 1, entries(3, 1), 3)
    queues.flush()
    assert flushed == files[1:2]
    queues.close()


def test_flushing_while_topics_are_dropped(queues: ConsumeQueues, tmp_path: Path) -> None:
    stop = threading.Event()
    failures: list[Exception] = []

    def flush() -> None:
        while not stop.is_set():
            try:
                queues.flush()
            except StoreWriteError as error:
                failures.append(error)

    thread = threading.Thread(target=flush)
    thread.start()
    for number in range(60):
        queues.append(f"T{number}", 0, entries(0, 5), 0)
        queues.drop([f"T{number}"])
    stop.set()
    thread.join()
    assert not failures
    assert os.listdir(tmp_path / "consumequeue") == []
    assert queues.ranges() == {}


@pytest.mark.parametrize("topic", ["..", "a/b", "", ".", "x" * 300, "a\0b"])
def test_promise_8_no_name_leads_out_of_the_store(
    queues: ConsumeQueues, tmp_path: Path, topic: str
) -> None:
    with pytest.raises(StoreWriteError, match="cannot be the name of a folder"):
        queues.append(topic, 0, entries(0, 1), 0)
    assert not (tmp_path / "consumequeue").exists() or not os.listdir(tmp_path / "consumequeue")


def test_a_failure_names_the_file(queues: ConsumeQueues, tmp_path: Path) -> None:
    (tmp_path / "consumequeue" / "T" / "0").mkdir(parents=True)
    (tmp_path / "consumequeue" / "T" / "0" / f"{0:020}").mkdir()
    with pytest.raises(StoreWriteError, match=f"{0:020} could not be written"):
        queues.append("T", 0, entries(0, 1), 0)
    assert queues.max_offset("T", 0) == 0


def test_the_names_of_new_queues_are_flushed_together(
    queues: ConsumeQueues, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one by one as they are made: a block can make thousands, under the append lock."""
    queues.append("T", 0, entries(0, 1), 0)
    queues.flush()
    flushed: list[str] = []
    fsync = os.fsync

    def traced(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        flushed.append(os.path.relpath(path, tmp_path / "consumequeue"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", traced)
    for topic, queue_id in [("T", 1), ("T", 2), ("U", 0)]:
        queues.append(topic, queue_id, entries(0, 1), 0)
    assert not flushed
    queues.flush()
    assert sorted(flushed) == [".", "T", "T/1", "T/2", "U", "U/0"]
