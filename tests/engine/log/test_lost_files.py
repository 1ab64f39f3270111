"""Files of queues that are gone: what a start notices of it, and that it walks the log only once.

Only the end of the log is walked when a store is opened: the checkpoints here vouch for the rest.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmqstore_spark.engine.recovery.recover import Recovered
from rmqstore_spark.engine.recovery.redispatch import LogBlock, log_blocks
from rmqstore_spark.layout.checkpoint import Checkpoint
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.verify import verify
from tests.support.stores.golden import load_queues, load_records
from tests.support.stores.recovering import close_cleanly, copy_store, entries_of, opened

Golden = Callable[[str], Path]

LOG_BEGIN = 655360
PER_FILE = 20  # entries of a queue's file in the golden stores


@pytest.fixture(params=["closed", "killed"])
def trimmed(
    request: pytest.FixtureRequest,
    golden: Golden,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A store whose log begins late, and of which a start walks the end only."""
    monkeypatch.setattr("rmqstore_spark.engine.recovery.queue_check._LOOKED_OVER", 2000)
    store = copy_store(golden("trimmed"), tmp_path)
    if request.param == "killed":
        (store / "abort").touch()
        monkeypatch.setattr("rmqstore_spark.engine.recovery.log_end.GRACE_MS", 0)
        newest = load_records(golden("trimmed"))[-1].store_timestamp
        (store / "checkpoint").write_bytes(Checkpoint(newest, newest, newest).encode())
    return store


def lose_first_files(store: Path, topic: str) -> int:
    """Remove the files of queue 1 with its first messages; returns the least offset it had."""
    with Store.open(store) as reader:
        (queue,) = (q for q in reader.queues([topic]) if q.queue_id == 1)
        least = queue.min_offset
    for path in (store / "consumequeue" / topic / "1").iterdir():
        if int(path.name) // 20 <= least:
            path.unlink()
    return least


def leave_killed(store: Path, found: Recovered) -> None:
    """Let a store that was killed before look so again."""
    if not found.summary.clean:
        (store / "abort").touch()


@pytest.mark.parametrize("topic", ["TopicTest", "orders_v2-EU"])
def test_a_queue_that_lost_its_first_file_is_noticed_where_the_log_begins_late(
    golden: Golden, trimmed: Path, topic: str
) -> None:
    folder = golden("trimmed")
    with opened(trimmed, folder) as found:
        wanted = entries_of(found, topic, 1)
        close_cleanly(trimmed, found)
    least = lose_first_files(trimmed, topic)
    leave_killed(trimmed, found)
    with opened(trimmed, folder) as found:
        assert found.summary.redispatched == -least % PER_FILE
        assert found.summary.walked_bytes < 100_000  # but not with the CRC of each body
        close_cleanly(trimmed, found)
    with Store.open(trimmed) as reader:
        assert verify(reader).ok
    with opened(trimmed, folder) as found:
        assert entries_of(found, topic, 1) == wanted


def test_it_is_noticed_in_a_store_of_which_nothing_was_written_down(
    golden: Golden, trimmed: Path
) -> None:
    least = lose_first_files(trimmed, "TopicTest")
    with opened(trimmed, golden("trimmed")) as found:
        assert found.summary.redispatched == -least % PER_FILE
        route = "TopicTest", 1
        ends = load_queues(golden("trimmed")).queues[route].max_offset
        assert len(entries_of(found, *route)) <= ends - least
        close_cleanly(trimmed, found)
    with Store.open(trimmed) as reader:
        assert verify(reader).ok


def walks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lists from where blocks of the log are gone through for queues and index."""
    begins: list[int] = []

    def told(log: CommitLog, begin: int, end: int) -> Iterator[LogBlock]:
        begins.append(begin)
        return log_blocks(log, begin, end)

    monkeypatch.setattr("rmqstore_spark.engine.recovery.queues_and_index.log_blocks", told)
    return begins


def test_a_queue_that_really_begins_with_a_file_is_looked_for_once(
    golden: Golden, trimmed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All before it expired: nothing but the log tells that from files that were lost."""
    for path in sorted((trimmed / "consumequeue").glob("*/*/*")):  # a file for each entry
        start, data = int(path.name), path.read_bytes()
        path.unlink()
        for at in range(0, len(data), 20):
            if int.from_bytes(data[at : at + 8], "big") >= LOG_BEGIN:
                (path.parent / f"{start + at:020}").write_bytes(data[at : at + 20])
    begins = walks(monkeypatch)
    for is_new in (True, False):
        begins.clear()
        with opened(trimmed, golden("trimmed")) as found:
            assert (LOG_BEGIN in begins) is is_new
            assert found.summary.redispatched == 0
            close_cleanly(trimmed, found)
        leave_killed(trimmed, found)


def test_a_consumed_queue_that_the_log_does_not_know_is_looked_for_once(
    golden: Golden, trimmed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = {"offsetTable": {"EverGone@readers": {0: 7, 1: 0}}}
    (trimmed / "config" / "consumerOffset.json").write_text(json.dumps(offsets))
    begins = walks(monkeypatch)
    for is_new in (True, False, False):
        begins.clear()
        with opened(trimmed, golden("trimmed")) as found:
            assert (LOG_BEGIN in begins) is is_new
            assert found.absent == {("EverGone", 0)}
            close_cleanly(trimmed, found)
        leave_killed(trimmed, found)


def test_a_queue_that_was_looked_for_in_vain_is_noticed_when_it_is_lost_later(
    golden: Golden, trimmed: Path
) -> None:
    folder = golden("trimmed")
    kept = trimmed / "consumequeue" / "orders_v2-EU" / "1"
    with opened(trimmed, folder) as found:
        close_cleanly(trimmed, found)
    state = trimmed / "rmqstore" / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "absent": [["orders_v2-EU", 1]]}))
    shutil.rmtree(kept)
    leave_killed(trimmed, found)
    with opened(trimmed, folder) as found:
        assert ("orders_v2-EU", 1) in found.summary.rebuilt_queues
