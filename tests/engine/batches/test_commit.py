"""DESIGN decision 3, "A micro-batch is in the log once, whole": a test for each of its sentences.

What happens when the process is killed, or a write fails, is in test_commit_faults.
"""

from __future__ import annotations

import json
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmqstore_spark.base.types import CommitRequest, WriterId, sum_of_digests
from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.engine.batches.held import HeldPortion
from rmqstore_spark.engine.batches.marker import MARKER_TOPIC
from rmqstore_spark.engine.batches.staged_records import Keys
from rmqstore_spark.errors import BlockError, RefusedError
from rmqstore_spark.files.systems.base import HandleCache
from rmqstore_spark.layout.constants import is_system_topic
from rmqstore_spark.layout.record.encode import encode_records
from rmqstore_spark.produce.records import record_columns
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.lookup import query_by_key
from rmqstore_spark.verify import verify
from tests.support.messages.batches import (
    BATCH,
    QUERY,
    ROWS,
    bodies,
    commit_batch,
    expected,
    rows_block,
    scanned,
    shown,
    small_segments,
    stage_batch,
    stage_id,
)
from tests.support.stores.storing import until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def writer(number: int) -> WriterId:
    return WriterId.of_stream(QUERY, number)


def log_end(store: StoreWriter) -> int:
    return int(store.stats()["commitLogMaxOffset"])


def markers(path: Path) -> list[dict[str, object]]:
    with Store.open(path) as store:
        return [
            json.loads(row["body"]) for b in store.read(MARKER_TOPIC, 0) for row in b.to_pylist()
        ]


def markers_bytes(path: Path) -> int:
    """Bytes of the records of the first batch."""
    return int(str(markers(path)[0]["bytes"]))


def test_a_stage_is_committed_only_as_the_task_said_it_was(path: Path) -> None:
    """A commit carries each stage's UUID, row count, bytes and checksum."""
    with StoreWriter.open(path, small_segments()) as store:
        first, *others = stage_batch(store, "b0")
        before = log_end(store)
        changed: dict[str, Any] = {
            name: getattr(first, name) ^ 1 for name in ("rows", "bytes", "body_bytes", "checksum")
        }
        for name, value in {**changed, "digest": "0" * 32}.items():
            wrong = replace(first, **{name: value})
            with pytest.raises(RefusedError, match="differs from what its task reported"):
                store.batches.commit(CommitRequest(writer(0), (wrong, *others)))
        assert log_end(store) == before
        assert store.batches.commit(CommitRequest(writer(0), (first, *others))).rows == BATCH
    assert scanned(path) == expected(0)


def test_a_commit_that_misses_a_stage_is_refused_and_the_batch_replayed(path: Path) -> None:
    """Staged data needs no fsync: what a restart lost is staged again."""
    store = StoreWriter.open(path, small_segments())
    lost = stage_batch(store, "b0")
    store.close()
    with StoreWriter.open(path, small_segments()) as store:
        with pytest.raises(RefusedError, match="misses the stage"):
            store.batches.commit(CommitRequest(writer(0), lost))
        assert log_end(store) == 0
        assert commit_batch(store, 0, attempt=1).status == "COMMITTED"
    assert scanned(path) == expected(0)


def test_a_commit_appends_the_winners_stages_in_partition_order(path: Path) -> None:
    with StoreWriter.open(path, small_segments()) as store:
        losers = stage_batch(store, "b0", attempt=1)
        infos = stage_batch(store, "b0")
        result = store.batches.commit(CommitRequest(writer(0), infos))
        assert (result.status, result.rows, result.physical_offset) == ("COMMITTED", BATCH, 0)
        store.batches.abort([loser.stage_id for loser in losers])
        assert store.stats()["stages"] == store.stats()["stagedBytes"] == 0
    assert scanned(path) == expected(0)
    with Store.open(path) as store_read:
        for queue in store_read.queues(["orders", "bills"]):
            rows = [r for b in store_read.read(queue.topic, queue.queue_id) for r in b.to_pylist()]
            assert [r["queueOffset"] for r in rows] == list(range(len(rows)))
            order = [expected(0).index(r["body"]) for r in rows]
            assert order == sorted(order)


def test_behind_the_rows_stands_one_marker_with_query_id_and_batch_id(path: Path) -> None:
    with StoreWriter.open(path, small_segments()) as store:
        infos = stage_batch(store, "b7")
        store.batches.commit(CommitRequest(writer(7), infos))
    with Store.open(path) as read:
        (time,) = {row["storeTimestamp"] for batch in read.scan() for row in batch.to_pylist()}
    assert markers(path) == [
        {
            "version": 3, "kind": "stream", "name": QUERY, "number": 7, "rows": BATCH,
            "storeTimestamp": round(time.timestamp() * 1000),
            "digest": sum_of_digests(i.digest for i in infos),
            "topics": {"bills": BATCH // 2, "orders": BATCH // 2},
            "bytes": sum(i.bytes for i in infos), "physicalOffset": 0,
            "bodyBytes": sum(map(len, expected(7))),
            "stages": [i.stage_id for i in infos],
        }
    ]  # fmt: skip
    with Store.open(path) as read:
        *_, last = [row for batch in read.scan() for row in batch.to_pylist()]
        assert (last["topic"], last["queueId"]) == (MARKER_TOPIC, 0)
        found = query_by_key(read, MARKER_TOPIC, QUERY)
        assert found["physicalOffset"].to_pylist() == [last["physicalOffset"]]


def test_the_marker_is_in_no_users_topic(path: Path) -> None:
    with StoreWriter.open(path, small_segments()) as store:
        commit_batch(store, 0)
        stage = store.batches.begin_stage(stage_id("forged"))
        with pytest.raises(RefusedError) as raised:  # nor can a client write one
            stage.append(rows_block([b"{}"], [MARKER_TOPIC]))
        assert raised.value.status == "MESSAGE_ILLEGAL"
        assert store.put(rows_block([b"{}"], [MARKER_TOPIC])).status.value == "MESSAGE_ILLEGAL"
    assert sum(shown(path).values()) == BATCH
    with Store.open(path) as read:
        topics = {topic.name: topic.is_system for topic in read.topics()}
    assert topics == {"orders": False, "bills": False, MARKER_TOPIC: True}
    assert is_system_topic(MARKER_TOPIC)


def test_brokers_know_the_markers_topic_and_let_nobody_write_to_it(path: Path) -> None:
    with StoreWriter.open(path, small_segments(maxTopics="2")) as store:
        commit_batch(store, 0)  # there is no room for a third topic
        assert MARKER_TOPIC not in store.topics
    with StoreWriter.open(path, small_segments()) as store:
        commit_batch(store, 1)
    topics = json.loads((path / "config" / "topics.json").read_text())["topicConfigTable"]
    assert {name: (t["perm"], t["writeQueueNums"]) for name, t in topics.items()} == {
        "orders": (6, 8), "bills": (6, 8), MARKER_TOPIC: (4, 1),
    }  # fmt: skip


def test_the_batch_is_one_block_with_no_put_in_between(path: Path) -> None:
    """Puts and commits of many clients at a time: rows of a batch stand next to each other."""
    stop = threading.Event()
    with StoreWriter.open(path, small_segments()) as store:

        def put() -> None:
            number = 0
            while not stop.is_set():
                store.put(rows_block([f"put/{threading.get_ident()}/{number}".encode()]))
                number += 1

        threads = [threading.Thread(target=put) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(10):
            assert commit_batch(store, number).status == "COMMITTED"
        stop.set()
        for thread in threads:
            thread.join()
    rows = scanned(path)
    for number in range(10):
        at = rows.index(expected(number)[0])
        assert rows[at : at + BATCH] == expected(number)
    with Store.open(path) as read:
        assert verify(read).errors == 0


def test_a_committed_batch_passes_verify(path: Path) -> None:
    with StoreWriter.open(path, small_segments()) as store:
        for number in range(3):
            store.put(rows_block(bodies(f"put{number}", 5)))
            commit_batch(store, number)
    with Store.open(path) as read:
        report = verify(read)
    assert (report.errors, report.problems, report.torn_tail) == (0, (), None)
    assert report.counts["records"] == 3 * (BATCH + 5 + 1)


def test_queue_offsets_continue_before_and_behind_a_batch(path: Path) -> None:
    with StoreWriter.open(path, small_segments()) as store:
        store.put(rows_block(bodies("a", 4), ["orders"]))
        commit_batch(store, 0)
        result = store.put(rows_block(bodies("b", 2), ["orders"]))
    with Store.open(path) as read:
        ends = [read.queue("orders", n).max_offset for n in (0, 1)]
        assert (result.queue_offset + 1).tolist() == ends
        assert sum(ends) == 4 + BATCH // 2 + 2


def test_the_checkpoint_never_covers_an_unpublished_block(path: Path) -> None:
    """A block is later than all before it, whatever the clock says."""
    now = [1_700_000_000_000]
    with StoreWriter.open(path, small_segments(), clock=lambda: now[0]) as store:
        store.put(rows_block(bodies("a", 1)))
        commit_batch(store, 0)
        now[0] -= 60_000
        commit_batch(store, 1)
        store.put(rows_block(bodies("c", 1)))
    with Store.open(path) as read:
        rows = [r for b in read.scan() for r in b.to_pylist()]
        checkpoint = read.checkpoint
    times = [int(r["storeTimestamp"].timestamp() * 1000) - 1_700_000_000_000 for r in rows]
    assert times == [0] + [1] * (BATCH + 1) + [2] * (BATCH + 1) + [2]
    assert checkpoint is not None
    assert checkpoint.physic_msg_timestamp == 1_700_000_000_002


def test_a_repeated_commit_is_a_no_op(path: Path) -> None:
    with StoreWriter.open(path, small_segments()) as store:
        first = commit_batch(store, 3)
        end = log_end(store)
        again = commit_batch(store, 3, attempt=1)
        assert (again.status, again.rows, again.physical_offset) == (
            "ALREADY_COMMITTED", first.rows, first.physical_offset,
        )  # fmt: skip
        assert (log_end(store), store.stats()["stages"]) == (end, 0)
    assert scanned(path) == expected(3)


def test_what_was_committed_is_known_from_the_markers_after_a_restart(path: Path) -> None:
    with StoreWriter.open(path, small_segments()) as store:
        commit_batch(store, 0)
    (path / "rmqstore" / "ledger.json").unlink()  # as on a replica, which has the log alone
    with StoreWriter.open(path, small_segments()) as store:
        assert commit_batch(store, 0, attempt=1).status == "ALREADY_COMMITTED"
        assert commit_batch(store, 1).status == "COMMITTED"
    assert scanned(path) == expected(0, 1)


def test_what_was_committed_is_known_from_a_file_where_the_markers_have_expired(path: Path) -> None:
    with StoreWriter.open(path, small_segments()) as store:
        commit_batch(store, 0)
        for _ in range(5):
            store.put(rows_block(bodies("later", 60)))
        end = log_end(store)
    for file in sorted((path / "commitlog").iterdir()):
        if int(file.name) + 8192 < end - 8192:
            file.unlink()
    with StoreWriter.open(path, small_segments()) as store:
        assert commit_batch(store, 0, attempt=1).status == "ALREADY_COMMITTED"
        stage = store.batches.begin_stage(stage_id("others"))
        stage.append(rows_block([body.swapcase() for body in expected(0)]))
        with pytest.raises(RefusedError, match=r"different content: 120 rows .*bills: 60"):
            store.batches.commit(CommitRequest(writer(0), (stage.finish(),)))


def test_a_commit_that_timed_out_and_succeeded_survives_the_abort(path: Path) -> None:
    with StoreWriter.open(path, small_segments()) as store:
        infos = stage_batch(store, "b0")
        store.batches.commit(CommitRequest(writer(0), infos))  # whose answer never came
        store.batches.abort([info.stage_id for info in infos])
        assert store.batches.commit(CommitRequest(writer(0), infos)).status == "ALREADY_COMMITTED"
    assert scanned(path) == expected(0)


def test_an_abort_fences_late_attempts(path: Path) -> None:
    with StoreWriter.open(path, small_segments()) as store:
        late = store.batches.begin_stage(stage_id("late"))
        infos = stage_batch(store, "b0")
        store.batches.abort([stage_id("late"), *(info.stage_id for info in infos)])
        with pytest.raises(RefusedError, match="aborted"):
            late.append(rows_block(bodies("late")))
        with pytest.raises(RefusedError, match="aborted"):
            store.batches.commit(CommitRequest(writer(0), infos))
        assert commit_batch(store, 0, attempt=1).status == "COMMITTED"
    assert scanned(path) == expected(0)


def test_staged_data_of_writers_that_never_come_back_is_removed(path: Path) -> None:
    now = [1_700_000_000_000]
    config = small_segments(stagingTimeout="60000")
    with StoreWriter.open(path, config, clock=lambda: now[0]) as store:
        infos = stage_batch(store, "b0")
        now[0] += 60_000
        # Its rows go a moment after it has left the table of stages.
        until(lambda: store.stats()["stagedBytes"] == 0)
        assert store.stats()["stages"] == 0
        assert list((path / "rmqstore" / "staging").iterdir()) == []
        with pytest.raises(RefusedError, match="removed after stagingTimeout"):
            store.batches.commit(CommitRequest(writer(0), infos))
        assert commit_batch(store, 0, attempt=1).status == "COMMITTED"


def test_queues_and_keys_are_dispatched_after_the_commit(path: Path) -> None:
    with StoreWriter.open(path, small_segments()) as store:
        commit_batch(store, 0)
        store.flush()
        assert sum(shown(path).values()) == BATCH  # while it is open, too
    assert sorted(shown(path).elements()) == sorted(expected(0))
    with Store.open(path) as read:
        assert query_by_key(read, "bills", expected(0)[1][:20].decode()).num_rows == 1


def test_a_batch_write_is_all_or_nothing_and_never_told_from_another(path: Path) -> None:
    """Batch writes are deduplicated only by txnAppId and txnVersion."""
    with StoreWriter.open(path, small_segments()) as store:
        for attempt in range(2):
            infos = stage_batch(store, "b0", attempt=attempt)
            result = store.batches.commit(CommitRequest(WriterId.of_one_write(), infos))
            assert result.status == "COMMITTED"
        for attempt, status in ((2, "COMMITTED"), (3, "ALREADY_COMMITTED")):
            infos = stage_batch(store, "b0", attempt=attempt)
            request = CommitRequest(WriterId.of_batch("app", 5), infos)
            assert store.batches.commit(request).status == status
    assert scanned(path) == expected(0, 0, 0)


def test_a_write_over_max_transaction_bytes_must_say_so(path: Path) -> None:
    config = small_segments(maxTransactionBytes=str(1 << 20))
    with StoreWriter.open(path, config) as store:
        infos = stage_batch(store, "b0", partitions=2, rows=2500)
        with pytest.raises(RefusedError, match=r"maxTransactionBytes.*atomic=false"):
            store.batches.commit(CommitRequest(WriterId.of_one_write(), infos))
        for info in infos:  # then each task commits alone
            assert (
                store.batches.commit(CommitRequest(WriterId.of_one_write(), (info,))).rows == 2500
            )
    assert len(scanned(path)) == 5000


@pytest.mark.threat("What one client can do to another")
@pytest.mark.parametrize("number", [0, 1, (1 << 63) - 1])
def test_a_commit_without_rows_is_refused(path: Path, number: int) -> None:
    with StoreWriter.open(path, small_segments()) as store:
        commit_batch(store, 0)
        empty = store.batches.begin_stage(stage_id("empty")).finish()
        for stages in ((), (empty,)):
            with pytest.raises(RefusedError, match="has no rows") as raised:
                store.batches.commit(CommitRequest(writer(number), stages))
            assert raised.value.status == "MESSAGE_ILLEGAL"
        assert commit_batch(store, 1).status == "COMMITTED"
    assert [m["number"] for m in markers(path)] == [0, 1]


def test_a_batch_write_in_parts_uses_its_number_without_rows(path: Path) -> None:
    whole, part = WriterId.of_batch("app", 5), WriterId.of_batch("app/0", 5)
    with StoreWriter.open(path, small_segments()) as store:
        assert store.batches.commit(CommitRequest(whole, ())).status == "COMMITTED"
        store.batches.commit(CommitRequest(part, stage_batch(store, "b0")))
    with StoreWriter.open(path, small_segments()) as store:
        assert store.batches.commit(CommitRequest(whole, ())).status == "ALREADY_COMMITTED"
        infos = stage_batch(store, "b0", attempt=1)
        assert store.batches.commit(CommitRequest(part, infos)).status == "ALREADY_COMMITTED"
        with pytest.raises(RefusedError, match=r"content: no rows, because its tasks.*another val"):
            store.batches.commit(CommitRequest(whole, stage_batch(store, "b0", attempt=2)))
        later = WriterId.of_batch("app", 6)
        assert (
            store.batches.commit(CommitRequest(later, stage_batch(store, "b1"))).status
            == "COMMITTED"
        )
        with pytest.raises(RefusedError, match="The new commit has no rows, because its tasks"):
            store.batches.commit(CommitRequest(later, ()))
    assert scanned(path) == expected(0, 1)


def test_an_empty_stage_beside_others_does_no_harm(path: Path) -> None:
    with StoreWriter.open(path, small_segments()) as store:
        empty = store.batches.begin_stage(stage_id("empty")).finish()
        infos = (empty, *stage_batch(store, "b0"))
        assert store.batches.commit(CommitRequest(writer(0), infos)).rows == BATCH
    assert scanned(path) == expected(0)


@pytest.mark.threat("What one client can do to another")
def test_numbers_may_leap_and_mark_only_themselves(path: Path) -> None:
    with StoreWriter.open(path, small_segments()) as store:
        for number in (2, 5, 9):
            assert commit_batch(store, number).status == "COMMITTED"
        store.flush()  # the markers are in their queue
        for number in (2, 5, 9):
            assert commit_batch(store, number, attempt=1).status == "ALREADY_COMMITTED"
        for number in (0, 3, 8):
            with pytest.raises(RefusedError, match=f"batch {number} of query.*9 has been") as seen:
                commit_batch(store, number)
            assert seen.value.status == "MESSAGE_ILLEGAL"
        assert commit_batch(store, 10).status == "COMMITTED"
    assert scanned(path) == expected(2, 5, 9, 10)


@pytest.mark.threat("What one client can do to another")
def test_a_number_that_comes_again_with_other_rows_is_refused_and_they_stay_staged(
    path: Path,
) -> None:
    with StoreWriter.open(path, small_segments()) as store:
        commit_batch(store, 0)
        commit_batch(store, 1)
        end = log_end(store)
        for number in (0, 1):
            store.flush()
            others = stage_batch(store, f"others-{number}", rows=ROWS - 1)
            with pytest.raises(RefusedError, match="with different content: 120 rows") as seen:
                store.batches.commit(CommitRequest(writer(number), others))
            assert seen.value.status == "MESSAGE_ILLEGAL"
            assert (log_end(store), store.stats()["stages"]) == (end, 3)
            assert store.batches.commit(CommitRequest(writer(number + 7), others)).rows == 117
            end = log_end(store)
        # As many rows, of other lengths.
        longer = store.batches.begin_stage(stage_id("longer"))
        longer.append(rows_block([b"z" * 500] * BATCH))
        with pytest.raises(RefusedError, match="120 rows with 60000 bytes of bodies"):
            store.batches.commit(CommitRequest(writer(1), (longer.finish(),)))
        # As many rows, of the same lengths.
        for rows, topics, words in (
            ([body.swapcase() for body in expected(1)], ("orders", "bills"), "bills: 60"),
            (expected(1), ("refund", "taxes"), "refund: 60, taxes: 60"),
        ):
            stage = store.batches.begin_stage(stage_id(words))
            stage.append(rows_block(rows, topics))
            with pytest.raises(RefusedError, match=f"The new commit has .*{words}") as seen:
                store.batches.commit(CommitRequest(writer(1), (stage.finish(),)))
            assert "bodies (bills: 60, orders: 60, digest" in str(seen.value)
            assert "stored at 20" in str(seen.value)
    rest = [b for n in (0, 1) for p in range(3) for b in bodies(f"others-{n}/{p}", ROWS - 1)]
    assert scanned(path) == expected(0, 1) + rest


def test_a_replay_is_known_whatever_of_its_records_is_new_with_each_attempt(path: Path) -> None:
    """Another executor, which has an IPv6 address, and another cut into partitions."""
    wanted = expected(0)
    with StoreWriter.open(path, small_segments()) as store:
        commit_batch(store, 0)
        infos = []
        for number, part in enumerate((wanted[:50], wanted[50:])):
            n = len(part)
            batch = pa.RecordBatch.from_pydict(
                {
                    "topic": [("orders", "bills")[wanted.index(body) % 2] for body in part],
                    "body": pa.array(part, pa.binary()),
                    "properties": [b"UNIQ_KEY\x01" + b"F" * 56] * n,
                    "bornTimestamp": [1_800_000_000_000] * n,
                    "bornHost": ["[2001:db8::1]:0"] * n,
                }
            )
            columns = record_columns(batch, 0, "0.0.0.0:0")
            stage = store.batches.begin_stage(stage_id(f"again-{number}"))
            stage.append(np.array(encode_records(columns).data))
            infos.append(stage.finish())
        sizes = sum(info.bytes for info in infos), sum(info.body_bytes for info in infos)
        store.flush()  # the marker is in its queue
        assert sizes[0] > markers_bytes(path) != sizes[1] == sum(map(len, wanted))
        result = store.batches.commit(CommitRequest(writer(0), tuple(infos)))
        assert (result.status, result.rows) == ("ALREADY_COMMITTED", BATCH)
        assert store.stats()["stages"] == 0
    assert scanned(path) == wanted


def test_a_delayed_message_counts_as_it_was_given(path: Path) -> None:
    """A replay is the same under other delay levels, and its topic is the one it is due in."""
    rows = {
        "topic": ["orders"] * 3,
        "body": pa.array([b"a", b"b", b"c"], pa.binary()),
        "properties": [b"DELAY\x0118", b"DELAY\x011", b"a\x01b"],
    }
    columns = record_columns(pa.RecordBatch.from_pydict(rows), 0, "0.0.0.0:0")
    for levels, status in (("1s 2s 3s", "COMMITTED"), ("1s", "ALREADY_COMMITTED")):
        with StoreWriter.open(path, small_segments(messageDelayLevel=levels)) as store:
            stage = store.batches.begin_stage(stage_id(levels))
            stage.append(np.array(encode_records(columns).data))
            assert (
                store.batches.commit(CommitRequest(writer(0), (stage.finish(),))).status == status
            )
    (marker,) = markers(path)
    assert marker["topics"] == {"orders": 3}


@pytest.mark.threat("What one client can do to another")
def test_a_writer_and_its_stages_belong_to_one_client(path: Path) -> None:
    with StoreWriter.open(path, small_segments()) as store:
        stage = store.batches.begin_stage(stage_id("a"), identity="spark-a")
        stage.append(rows_block(bodies("a")))
        first = (stage.finish(),)
        with pytest.raises(RefusedError, match="belongs to the client 'spark-a'") as seen:
            store.batches.commit(CommitRequest(writer(0), first), "spark-b")
        assert seen.value.status == "NO_PERMISSION"
        with pytest.raises(RefusedError, match="belongs to the client 'spark-a'"):
            store.batches.abort([first[0].stage_id], "spark-b")
        assert (
            store.batches.commit(CommitRequest(writer(0), first), "spark-a").status == "COMMITTED"
        )
    with StoreWriter.open(path, small_segments()) as store:
        theirs = store.batches.begin_stage(stage_id("b"), identity="spark-b")
        theirs.append(rows_block(bodies("b")))
        second = (theirs.finish(),)
        for number in (0, 1):
            with pytest.raises(RefusedError, match="belongs to the client 'spark-a'") as seen:
                store.batches.commit(CommitRequest(writer(number), second), "spark-b")
            assert seen.value.status == "NO_PERMISSION"
        own = WriterId.of_stream("another query", 0)
        assert store.batches.commit(CommitRequest(own, second), "spark-b").status == "COMMITTED"
    assert scanned(path) == bodies("a") + bodies("b")
    assert [m["identity"] for m in markers(path)] == ["spark-a", "spark-b"]


def test_a_block_of_many_portions_and_segments(path: Path) -> None:
    """Of a size that does not go through memory at once, over segments that end within portions."""
    config = small_segments(
        mappedFileSizeCommitLog=str(3 << 20), mappedFileSizeConsumeQueue="6000000"
    )
    wanted = [f"{n}:".encode() + b"y" * 50_000 for n in range(400)]
    with StoreWriter.open(path, config) as store:
        stage = store.batches.begin_stage(stage_id("large"))
        for first in range(0, 400, 50):
            stage.append(rows_block(wanted[first : first + 50]))
        small = store.batches.begin_stage(stage_id("small"))
        small.append(rows_block(bodies("small")))
        infos = (stage.finish(), small.finish())
        result = store.batches.commit(CommitRequest(writer(0), infos))
        assert result.rows == 440
        store.put(rows_block(bodies("behind", 3)))
    assert scanned(path) == wanted + bodies("small") + bodies("behind", 3)
    with Store.open(path) as read:
        assert verify(read).errors == 0
    assert len(list((path / "commitlog").iterdir())) > 6


@contextmanager
def room_for_files(most: int) -> Iterator[None]:
    """Let this process open so many more files, and none beyond them."""
    opened = {int(file.name) for file in Path("/proc/self/fd").iterdir()}
    free = (number for number in count() if number not in opened)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(islice(free, most, None)), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_block_over_more_segments_than_are_kept_open(path: Path) -> None:
    config = small_segments(mappedFileSizeConsumeQueue="60000", maxIndexNum="20000")
    with StoreWriter.open(path, config) as store:
        store.put(rows_block(bodies("a", 3)))
        infos = stage_batch(store, "b0", rows=1000)
        with room_for_files(85):  # and 64 segments are kept open
            assert store.batches.commit(CommitRequest(writer(0), infos)).rows == 3000
        store.put(rows_block(bodies("b", 3)))
    rows = [b for p in range(3) for b in bodies(f"b0/{p}", 1000)]
    assert scanned(path) == [*bodies("a", 3), *rows, *bodies("b", 3)]
    assert len(list((path / "commitlog").iterdir())) > 68
    with Store.open(path) as read:
        assert verify(read).errors == 0


@pytest.mark.parametrize("kept", [0, 3_000, 1 << 20])
def test_queues_and_index_are_made_beside_the_writes_as_far_as_memory_goes(
    path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr("rmqstore_spark.engine.batches.batch_block._KEPT_BYTES", kept)
    monkeypatch.setattr("rmqstore_spark.engine.batches.held._TOGETHER_BYTES", 1)
    read, later = HeldPortion.read_keys, list[str]()
    is_published = threading.Event()

    def counted(portion: HeldPortion, files: HandleCache[int]) -> Keys:
        if is_published.is_set():
            later.append("read")
        return read(portion, files)

    def look(name: str) -> None:
        if name == "commit.after_filler":  # right before it is published
            is_published.set()

    with StoreWriter.open(path, small_segments()) as store:
        stages = [store.batches.begin_stage(stage_id(f"s{n}")) for n in range(2)]
        wanted = []
        for n, stage in enumerate(stages):
            for block in range(10):
                wanted += bodies(f"{n}/{block}", 20)
                stage.append(rows_block(bodies(f"{n}/{block}", 20)))
        infos = tuple(stage.finish() for stage in stages)
        monkeypatch.setattr(HeldPortion, "read_keys", counted)
        monkeypatch.setattr("rmqstore_spark.engine.log.commitlog.reach", look)
        assert store.batches.commit(CommitRequest(writer(0), infos)).rows == 400
    assert scanned(path) == wanted
    with Store.open(path) as opened:
        assert verify(opened).errors == 0
    assert {0: len(later) == 20, 3_000: 0 < len(later) < 20, 1 << 20: not later}[kept]


def test_a_portion_that_is_read_ahead_does_not_touch_the_one_being_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmqstore_spark.engine.batches.staged_records.PORTION_BYTES", 1 << 20)
    wanted = [f"{n}:".encode() + b"y" * 50_000 for n in range(200)]
    with StoreWriter.open(path) as store:
        stage = store.batches.begin_stage(stage_id("large"))
        for first in range(0, len(wanted), 50):
            stage.append(rows_block(wanted[first : first + 50]))
        store.batches.commit(CommitRequest(writer(0), (stage.finish(),)))
    assert scanned(path) == wanted


def test_a_topic_that_was_deleted_since_it_was_staged_gets_nothing(path: Path) -> None:
    with StoreWriter.open(path, small_segments(autoCreateTopicEnable="false")) as store:
        for topic in ("orders", "bills"):
            store.create_topic(topic)
        infos = stage_batch(store, "b0")
        store.delete_topic("bills")
        with pytest.raises(RefusedError, match="bills") as raised:
            store.batches.commit(CommitRequest(writer(0), infos))
        assert (raised.value.status, log_end(store)) == ("TOPIC_NOT_EXIST", 0)
        store.create_topic("bills")
        assert store.batches.commit(CommitRequest(writer(0), infos)).status == "COMMITTED"
    assert scanned(path) == expected(0)


def test_a_record_that_no_segment_can_hold_is_refused(path: Path) -> None:
    with StoreWriter.open(path, small_segments()) as store:
        stage = store.batches.begin_stage(stage_id("large"))
        stage.append(rows_block([b"z" * 9000]))
        info = stage.finish()
        with pytest.raises(RefusedError, match="mappedFileSizeCommitLog") as raised:
            store.batches.commit(CommitRequest(writer(0), (info,)))
        assert raised.value.status == "MESSAGE_ILLEGAL"
        assert commit_batch(store, 0).status == "COMMITTED"
    assert scanned(path) == expected(0)


def test_a_store_with_ipv6_addresses(path: Path) -> None:
    with StoreWriter.open(path, small_segments(brokerIP1="::1")) as store:
        stage = store.batches.begin_stage(stage_id("v4"))
        with pytest.raises(BlockError, match="storeHost"):
            stage.append(rows_block(bodies("x")))
        columns = {"topic": ["orders"], "body": [b"x"]}
        batch = record_columns(pa.RecordBatch.from_pydict(columns), 0, store.config.host[0])
        stage.append(np.array(encode_records(batch).data))
        request = CommitRequest(writer(0), (stage.finish(),))
        assert store.batches.commit(request).status == "COMMITTED"
    with Store.open(path) as read:
        _, row = [row for batch in read.scan() for row in batch.to_pylist()]
    assert row["storeHost"] == row["bornHost"] == "[0:0:0:0:0:0:0:1]:10921"


@pytest.mark.parametrize("bad", [WriterId.of_stream("", 0), WriterId.of_stream("q", -1)])
def test_a_writer_that_is_none_is_refused(path: Path, bad: WriterId) -> None:
    with (
        StoreWriter.open(path, small_segments()) as store,
        pytest.raises(RefusedError, match=r"name|number"),
    ):
        store.batches.commit(CommitRequest(bad, stage_batch(store, "b0")))


def test_two_clients_commit_the_same_batch_at_a_time(path: Path) -> None:
    with StoreWriter.open(path, small_segments()) as store:
        requests = [
            CommitRequest(writer(0), stage_batch(store, "b0", attempt=attempt))
            for attempt in range(4)
        ]
        found: list[str] = []
        threads = [
            threading.Thread(target=lambda r=r: found.append(store.batches.commit(r).status))
            for r in requests
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == ["ALREADY_COMMITTED"] * 3 + ["COMMITTED"]
        assert store.stats()["stages"] == 0
    assert scanned(path) == expected(0)


def test_staged_rows_are_taken_from_memory_that_cannot_be_written(path: Path) -> None:
    data = np.frombuffer(rows_block(bodies("x")).tobytes(), np.uint8)
    with StoreWriter.open(path, small_segments()) as store:
        stage = store.batches.begin_stage(stage_id("x"))
        assert stage.append(data) == 40
