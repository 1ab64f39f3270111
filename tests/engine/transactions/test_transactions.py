"""Transactions: how half messages wait, and what their end stores, once."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmqstore_spark.base.types import HalfId
from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.engine.transactions.progress import OpNotes
from rmqstore_spark.errors import OptionError, RmqStoreError
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.groups import group_offset
from rmqstore_spark.verify import verify
from tests.support.processes.delaying import rows_of
from tests.support.processes.halving import (
    GROUP,
    as_block,
    ends,
    half_config,
    halves,
    ids_of,
    put_halves,
    waiting_in,
)
from tests.support.stores.golden import RecordReport, load_records
from tests.support.stores.storing import Clock, in_queues, messages, until

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
LAST = "TRANS_CHECK_MAX_TIME_TOPIC"
HOUR_MS = 3_600_000


def put_alike(store: StoreWriter, record: RecordReport) -> HalfId:
    """Put the half message of which RocketMQ stored a record."""
    given = {k: v for k, v in record.properties.items() if not k.startswith("REAL_")}
    joined = "\x02".join(f"{name}\x01{value}" for name, value in given.items())
    batch = pa.RecordBatch.from_pydict(
        {
            "topic": [record.properties["REAL_TOPIC"]],
            "queueId": pa.array([int(record.properties["REAL_QID"])], pa.int32()),
            "body": [record.body],
            "properties": [joined.encode()],
            "bornTimestamp": [record.born_timestamp],
        }
    )
    return ids_of(store.transactions.puts.put(as_block(batch)))[0]


def seen(row: dict[str, Any], record: RecordReport) -> None:
    """Check that a message is as RocketMQ reports one, but for its places and times."""
    assert (row["topic"], row["queueId"]) == (record.topic, record.queue_id)
    assert (row["body"], row["storeSize"]) == (record.body, record.store_size)
    assert (row["sysFlag"], row["flag"]) == (record.sys_flag, record.flag)
    assert dict(row["properties"]) == record.properties


def test_they_are_stored_as_by_a_broker(golden: Callable[[str], Path], tmp_path: Path) -> None:
    records = load_records(golden("live"))
    unchecked = [r for r in records if "TRANSACTION_CHECK_TIMES" not in r.properties]
    half = [r for r in unchecked if r.topic == HALF]
    theirs = {r.properties["KEYS"]: r for r in unchecked if r.topic == "LiveTran"}
    ops = [r for r in records if r.topic == OP]
    committed = [r for r in half if r.properties["KEYS"] in theirs]
    path = tmp_path / "s"
    with StoreWriter.open(path, half_config(), clock=Clock()) as store:
        made = {record.properties["KEYS"]: put_alike(store, record) for record in half}
        chosen = [made[record.properties["KEYS"]] for record in committed]
        assert set(ends(store, chosen, is_commit=True, group="pg_live_tx")) == {"COMMITTED"}
    for row, record in zip(rows_of(path, HALF), half, strict=True):
        seen(row, record)
    rows = {row["keys"][0]: row for row in rows_of(path, "LiveTran")}
    assert rows.keys() == theirs.keys()
    for key, record in theirs.items():
        seen(rows[key], record)
        assert rows[key]["preparedTransactionOffset"] == made[key].physical_offset
    for row, half_id in zip(rows_of(path, OP), chosen, strict=True):
        assert row["body"] == b"%d" % half_id.queue_offset
        assert (row["sysFlag"], row["queueId"], row["preparedTransactionOffset"]) == (0, 0, 0)
        assert dict(row["properties"]) == ops[0].properties
    assert {row["storeSize"] for row in rows_of(path, OP)} <= {r.store_size for r in ops}
    ended = {half_id.queue_offset for half_id in chosen}
    assert [one.place.queue_offset for one in waiting_in(path)] == [
        n for n in range(len(half)) if n not in ended
    ]
    with Store.open(path) as reader:
        assert verify(reader).problems == ()


def test_what_waits_in_a_brokers_store_goes_on(
    copy: Callable[[str], Path], golden: Callable[[str], Path]
) -> None:
    # The broker's own progress: it has checked all before 36, and ended all before op 17.
    records = load_records(golden("live"))
    newest = {r.queue_offset: r for r in records if r.topic == HALF and r.queue_offset >= 36}
    path = copy("live") / "store"
    found = waiting_in(path)
    assert [one.place.queue_offset for one in found] == sorted(newest)
    for one in found:
        record = newest[one.place.queue_offset]
        assert one.key == record.properties["UNIQ_KEY"]
        assert str(one.checks) == record.properties["TRANSACTION_CHECK_TIMES"]
        assert (one.topic, one.queue_id) == ("LiveTran", record.properties["REAL_QID"])
    first = next(r for r in records if r.topic == HALF and r.properties["UNIQ_KEY"] == found[0].key)
    done = next(r for r in records if r.topic == HALF and r.queue_offset == 0)
    before = len(rows_of(path, "LiveTran"))
    with StoreWriter.open(path, half_config()) as store:
        # The producer answers for the half message before the broker's copies of it.
        late = HalfId(first.queue_offset, first.physical_offset)
        assert ends(store, [late], is_commit=True, group="pg_live_tx") == ["COMMITTED"]
        old = HalfId(done.queue_offset, done.physical_offset)
        for half in (old, late):
            assert ends(store, [half], is_commit=True, group="pg_live_tx") == ["ENDED_BEFORE"]
    rows = rows_of(path, "LiveTran")
    assert len(rows) == before + 1
    new = next(r for r in rows if r["uniqKey"] == found[0].key)
    assert new["preparedTransactionOffset"] == found[0].place.physical_offset
    assert [one.place.queue_offset for one in waiting_in(path)] == sorted(newest)[1:]


def test_each_ends_once(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with StoreWriter.open(path, half_config(), clock=Clock()) as store:
        a, b, c = put_halves(store, [b"a", b"b", b"c"], queue_id=[0, 1, 2])
        assert ends(store, [a, a], is_commit=True) == ["COMMITTED", "ENDED_BEFORE"]
        assert ends(store, [b], is_commit=False) == ["ROLLED_BACK"]
        end = store.published_end
        assert ends(store, [a, b], is_commit=False) == ["ENDED_BEFORE"] * 2
        assert ends(store, [b], is_commit=True) == ["ENDED_BEFORE"]
        wrong = [HalfId(0, b.physical_offset), HalfId(9, c.physical_offset), HalfId(-1, 1 << 60)]
        assert ends(store, wrong, is_commit=True) == ["MESSAGE_ILLEGAL"] * 3
        assert ends(store, [a, c], is_commit=True, group="other") == ["MESSAGE_ILLEGAL"] * 2
        assert store.published_end == end, "none of these stores anything"
        assert [one.place.queue_offset for one in store.transactions.waiting()] == [2]
    with StoreWriter.open(path, half_config(), clock=Clock()) as store:
        assert ends(store, [a, b], is_commit=True) == ["ENDED_BEFORE"] * 2
        assert ends(store, [c], is_commit=True) == ["COMMITTED"]
        assert store.stats()["transactionsWaiting"] == 0
    found = in_queues(path)
    assert (found["T", 0], found["T", 2], found.get(("T", 1))) == ([b"a"], [b"c"], None)
    with Store.open(path) as reader:
        assert group_offset(reader, "CID_RMQ_SYS_TRANS", HALF, 0) == 3
        assert group_offset(reader, "CID_RMQ_SYS_TRANS", OP, 0) == 3
        assert verify(reader).problems == ()


def test_a_message_that_was_sent_twice_is_one_transaction(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with StoreWriter.open(path, half_config(), clock=Clock()) as store:
        first, again = *put_halves(store, [b"a"]), *put_halves(store, [b"a"])
        (one,) = store.transactions.waiting()
        assert [place.queue_offset for place in one.places] == [0, 1]
    assert len(waiting_in(path)) == 1
    with StoreWriter.open(path, half_config(), clock=Clock()) as store:
        assert ends(store, [first], is_commit=True) == ["COMMITTED"]
        assert ends(store, [again], is_commit=True) == ["ENDED_BEFORE"]
    assert in_queues(path)["T", 0] == [b"a"]
    assert [row["body"] for row in rows_of(path, OP)] == [b"0", b"1"]


def test_a_message_is_sent_again_only_so_often(tmp_path: Path) -> None:
    """Each time costs as much as all before it."""
    path = tmp_path / "s"
    with StoreWriter.open(path, half_config(), clock=Clock()) as store:
        put = store.transactions.puts.put
        made = put_halves(store, [b"a"] * 200)
        refused = put(as_block(halves([b"b"] + [b"a"] * 57)))
        assert refused.status == "MESSAGE_ILLEGAL"
        assert "256 half messages of one transaction wait" in refused.remark
        assert "'u-a'. Give each message a UNIQ_KEY of its own" in refused.remark
        made += put_halves(store, [b"a"] * 56)
        assert put(as_block(halves([b"a"]))).status == "MESSAGE_ILLEGAL"
        put_halves(store, [b"a"], topic="U")
        assert len(store.transactions.waiting()) == 2
        assert ends(store, [made[-1]], is_commit=True) == ["COMMITTED"]
        put_halves(store, [b"a"])
    assert in_queues(path)["T", 0] == [b"a"]
    assert [len(one.places) for one in waiting_in(path)] == [1, 1]


def test_a_message_that_is_put_again_after_its_end_is_another_transaction(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with StoreWriter.open(path, half_config(), clock=Clock()) as store:
        (first,) = put_halves(store, [b"a"])
        assert ends(store, [first], is_commit=False) == ["ROLLED_BACK"]
        (again,) = put_halves(store, [b"a"], bornTimestamp=pa.array([5], pa.int64()))
        assert ends(store, [first], is_commit=False) == ["ENDED_BEFORE"]
        # The progress is lost too, so all of the log is read.
        store.flush()
    (path / "config" / "consumerOffset.json").unlink(missing_ok=True)
    (path / "config" / "consumerOffset.json.bak").unlink(missing_ok=True)
    assert [one.place.queue_offset for one in waiting_in(path)] == [again.queue_offset]
    with StoreWriter.open(path, half_config(), clock=Clock()) as store:
        assert ends(store, [first], is_commit=False) == ["ENDED_BEFORE"]
        assert ends(store, [again], is_commit=True) == ["COMMITTED"]
    assert in_queues(path)["T", 0] == [b"a"]
    assert waiting_in(path) == []


def test_a_message_that_goes_to_two_topics_is_two_transactions(tmp_path: Path) -> None:
    """As one that is forwarded with its properties, UNIQ_KEY among them."""
    path = tmp_path / "s"
    with StoreWriter.open(path, half_config(), clock=Clock()) as store:
        made = [*put_halves(store, [b"a"]), *put_halves(store, [b"a"], topic="U")]
        assert ends(store, made, is_commit=True) == ["COMMITTED"] * 2
    found = in_queues(path)
    assert (found["T", 0], found["U", 0]) == ([b"a"], [b"a"])


def test_a_delay_counts_from_the_commit(tmp_path: Path) -> None:
    path, clock = tmp_path / "s", Clock()
    settings = half_config(messageDelayLevel="1s")
    with StoreWriter.open(path, settings, clock=clock) as store:
        kept, gone = put_halves(store, [b"a", b"b"], more=b"DELAY\x011")
        clock.now += HOUR_MS
        assert store.stats()["delayedDelivered"] == 0
        assert ends(store, [kept], is_commit=True) == ["COMMITTED"]
        assert ends(store, [gone], is_commit=False) == ["ROLLED_BACK"]
        assert ("T", 0) not in in_queues(path)
        clock.now += 1000
        until(lambda: store.stats()["delayedDelivered"] == 1)
        assert ends(store, [kept], is_commit=True) == ["ENDED_BEFORE"]
    (row,) = rows_of(path, "T")
    assert (row["body"], row["sysFlag"] & 0xC) == (b"a", 8)


def test_what_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with StoreWriter.open(path, half_config(mappedFileSizeCommitLog=4096)) as store:
        put = store.transactions.puts.put
        plain = messages([b"x"], properties=[b"PGROUP\x01pg"], bornTimestamp=[0])
        assert "TRAN_MSG=true" in put(as_block(plain)).remark
        nobody = messages([b"x"], properties=[b"TRAN_MSG\x01TRUE"], bornTimestamp=[0])
        assert "PGROUP" in put(as_block(nobody)).remark
        assert put(as_block(halves([b"x"], more=b"k\x01" + b"v" * 32_720))).status == (
            "PROPERTIES_SIZE_EXCEEDED"
        )
        assert "no segment has room" in put(as_block(halves([b"x" * 3850]))).remark
        assert put(as_block(halves([b"x"], topic=HALF))).status == "MESSAGE_ILLEGAL"
        assert "DELAY is not" in put(as_block(halves([b"x"], more=b"DELAY\x01soon"))).remark
        with pytest.raises(OptionError, match="only the store moves them"):
            store.commit_offsets("CID_RMQ_SYS_TRANS", {HALF: {0: 1}}, reset=True)
    assert waiting_in(path) == []
    with StoreWriter.open(path, half_config(rejectTransactionMessage="true")) as store:
        assert store.transactions.puts.put(as_block(halves([b"x"]))).status == "NO_PERMISSION"


def test_a_deleted_topic_is_made_again_by_a_commit(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with StoreWriter.open(path, half_config()) as store:
        (half,) = put_halves(store, [b"a"], queue_id=[3])
        store.delete_topic("T")
        assert ends(store, [half], is_commit=True) == ["COMMITTED"]
        topic = store.topics.get("T")
        assert topic is not None
        assert topic.write_queue_nums == 4
    assert in_queues(path)["T", 3] == [b"a"]


# ---- checks --------------------------------------------------------------------------------------


def test_they_are_checked_and_then_given_up(tmp_path: Path) -> None:
    path, clock = tmp_path / "s", Clock()
    settings = half_config(transactionCheckMax=2, transactionTimeOut=1000)
    with StoreWriter.open(path, settings, clock=clock) as store:
        service = store.transactions
        put_halves(store, [b"a", b"b"], flag=pa.array([7, 7], pa.int32()))
        put_halves(store, [b"c"], more=b"CHECK_IMMUNITY_TIME_IN_SECONDS\x01100")
        clock.now += 999
        service.check()
        assert service.take_asked(GROUP, 10) == []
        clock.now += 1
        service.check()
        assert service.asked_groups == {GROUP}
        assert service.take_asked("other", 10) == []
        asked = [*service.take_asked(GROUP, 1), *service.take_asked(GROUP, 10)]
        assert [one.key for one in asked] == ["u-a", "u-b"]
        assert service.take_asked(GROUP, 10) == [], "each check asks once"
        first = HalfId(asked[0].place.queue_offset, asked[0].place.physical_offset)
        assert ends(store, [first], is_commit=True) == ["COMMITTED"]
    assert rows_of(path, "T")[0]["flag"] == 7, "checks leave a half message as it is"
    with StoreWriter.open(path, settings, clock=clock) as store:
        assert [one.checks for one in store.transactions.waiting()] == [1, 0]
        store.transactions.check()
        store.transactions.check()
        assert [one.key for one in store.transactions.waiting()] == ["u-c"]
        assert store.transactions.take_asked(GROUP, 10) == [], "nobody is asked any more"
        clock.now += 100_000
        store.transactions.check()
        assert [one.checks for one in store.transactions.waiting()] == [1]
        figures = store.stats()
        assert (figures["transactionsGivenUp"], figures["transactionsWaiting"]) == (1, 1)
    (last,) = rows_of(path, LAST)
    assert (last["body"], last["flag"], last["sysFlag"], last["queueId"]) == (b"b", 7, 0, 0)
    assert [row["body"] for row in rows_of(path, "T")] == [b"a"]
    assert len(rows_of(path, HALF)) == 3, "no check copies anything"
    with Store.open(path) as reader:
        assert verify(reader).problems == ()


def test_what_cannot_be_given_up_now_waits_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock = tmp_path / "s", Clock()
    settings = half_config(
        transactionCheckMax=1, transactionTimeOut=0, mappedFileSizeCommitLog=4096
    )

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with StoreWriter.open(path, settings, clock=clock) as store:
        put_halves(store, [b"a"])
        monkeypatch.setattr(os, "posix_fallocate", full)
        assert store.put_batch(messages([b"x" * 3650])).ok  # the copy needs the next segment
        store.transactions.check()
        with pytest.raises(RmqStoreError, match="No space left"):
            store.transactions.check()
        assert [one.checks for one in store.transactions.waiting()] == [1]
        monkeypatch.undo()
        store.transactions.check()
        assert store.transactions.waiting() == []
    assert [row["body"] for row in rows_of(path, LAST)] == [b"a"]


def test_no_immunity_keeps_the_log_for_ever(tmp_path: Path) -> None:
    path, clock = tmp_path / "s", Clock()
    with StoreWriter.open(path, half_config(fileReservedTime=2), clock=clock) as store:
        put_halves(store, [b"a"], more=b"CHECK_IMMUNITY_TIME_IN_SECONDS\x01999999999999")
        clock.now += 2 * HOUR_MS
        store.transactions.check()
        assert store.stats()["transactionsWaiting"] == 1
        clock.now += 1
        store.transactions.check()
        assert store.stats()["transactionsWaiting"] == 0
    assert [row["body"] for row in rows_of(path, LAST)] == [b"a"]


def test_the_thread_checks(tmp_path: Path) -> None:
    settings = half_config(transactionCheckInterval=100, transactionTimeOut=0)
    with StoreWriter.open(tmp_path / "s", settings) as store:
        put_halves(store, [b"a"])
        until(lambda: bool(store.transactions.take_asked(GROUP, 1)))
        assert store.stats()["transactionChecks"] >= 1


def test_a_segment_is_kept_while_half_messages_in_it_wait(tmp_path: Path) -> None:
    path, clock = tmp_path / "s", Clock()
    settings = half_config(
        mappedFileSizeCommitLog=4096, cleanResourceInterval=100, deleteCommitLogFilesInterval=0
    )
    with StoreWriter.open(path, settings, clock=clock) as store:
        (half,) = put_halves(store, [b"a"])
        for _ in range(4):
            clock.now += 1000
            assert store.put_batch(messages([b"x" * 3000])).ok
        store.flush()
        found = store.expirable(clock.now)
        assert ("half messages" in found.remark, found.is_working) == (True, False)
        with store.reading(f"commitlog/{4096:020}"):
            store.expire(clock.now)
            until(lambda: not store.expirable(clock.now).is_working)
            assert "half messages" in store.expirable(clock.now).remark
            assert store.flush()["minOffset"] == 0
        assert ends(store, [half], is_commit=True) == ["COMMITTED"]
        store.expire(clock.now)
        until(lambda: store.flush()["minOffset"] > 0)
        assert ends(store, [half], is_commit=True) == ["ENDED_BEFORE"]
    assert in_queues(path)["T", 0][-1] == b"a"


@pytest.mark.parametrize("broker", ["127.0.0.1:1", ""], ids=["told", "not told"])
def test_a_slave_keeps_such_a_segment_if_it_is_told_what_has_ended_and_its_disk_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: str
) -> None:
    path, clock, is_full = tmp_path / "s", Clock(), threading.Event()
    monkeypatch.setattr(
        "rmqstore_spark.engine.admission.disk_used_ratio", lambda _: 0.9 * is_full.is_set()
    )
    settings = dict[str, Any](
        mappedFileSizeCommitLog=4096, cleanResourceInterval=100, deleteCommitLogFilesInterval=0,
        fileReservedTime=10_000,
    )  # fmt: skip
    with StoreWriter.open(path, half_config(**settings), clock=clock) as store:
        ended = put_halves(store, [b"a", b"b"])
        for body in (b"c", b"d"):
            clock.now += 1000
            assert store.put_batch(messages([b"x" * 3000])).ok
            put_halves(store, [body])
        assert ends(store, ended, is_commit=True) == ["COMMITTED"] * 2
        for _ in range(4):
            clock.now += 1000
            assert store.put_batch(messages([b"x" * 3000])).ok
    (first, _) = [one.place.physical_offset for one in waiting_in(path)]
    settings.update(brokerRole="SLAVE", haMasterRemotingAddress=broker)

    def begin_after_expiry() -> int:
        store.expire(clock.now)
        until(lambda: not store.expirable(clock.now).is_working)
        return int(store.flush()["minOffset"])

    with StoreWriter.open(path, half_config(**settings), clock=clock) as store:
        begin = begin_after_expiry()
        if broker:
            assert begin == first - first % 4096
            is_full.set()
            assert begin_after_expiry() > first
        else:
            assert begin > first


def test_a_progress_never_leaves_out_an_op_message() -> None:
    rng = np.random.default_rng(5)
    notes, halves_of, done = OpNotes(), rng.permutation(5000), 0
    while done < 5000:
        count = int(rng.integers(1, 700))
        offsets = np.arange(done, min(done + count, 5000))
        notes.add(offsets, halves_of[offsets])
        done += len(offsets)
        left = np.setdiff1d(np.arange(5000), halves_of[:done])
        oldest = int(left[0]) if len(left) else 5000
        begin = notes.begin(oldest)
        assert (halves_of[:begin] < oldest).all()
    assert notes.begin(5000) == 5000
