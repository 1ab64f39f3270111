"""What consumers are told of messages that are far back, gone, or cannot be read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import Served, ask, broker, message, number, pull, records_in
from tests.support.stores.pages import is_refused_when_cold
from tests.support.waiting import eventually


def send(served: Served, count: int, size: int = 1) -> None:
    """Send messages to one queue, and wait until they are in it."""
    answers = ask(served.address, *(message(b"x" * size, i="TAGS\x01a") for _ in range(count)))
    assert [answer.code for answer in answers] == [0] * count
    served.store.flush()


def group(**settings: int) -> Command:
    told = {"groupName": "consumers", **settings}
    return Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps(told).encode())


def suggested(answers: list[Command]) -> list[tuple[str, int]]:
    return [(each.remark or "", number(each, "suggestWhichBrokerId")) for each in answers]


ALL_KINDS = (
    pull(0), pull(0, maxMsgNums="1"), pull(0, subscription="nobody"), pull(2), pull(9), pull(-1),
    pull(0, queue=1),
)  # fmt: skip
STATUSES = [
    "FOUND", "FOUND", "NO_MATCHED_MESSAGE", "OFFSET_OVERFLOW_ONE", "OFFSET_OVERFLOW_BADLY",
    "OFFSET_TOO_SMALL", "NO_MESSAGE_IN_QUEUE",
]  # fmt: skip


def test_who_reads_far_back_is_sent_to_a_slave(tmp_path: Path) -> None:
    path = tmp_path / "store"
    # With no memory at all, each message is far back.
    no_memory = {"access_message_in_memory_max_ratio": 0}
    with broker(path, **no_memory) as served:
        send(served, 2)
        assert suggested(ask(served.address, *ALL_KINDS)) == [(status, 0) for status in STATUSES]
    with broker(path, **no_memory, slave_read_enable=True) as served:
        usual = suggested(ask(served.address, *ALL_KINDS))
        ask(served.address, group(brokerId=3, whichBrokerWhenConsumeSlowly=2))
        chosen = suggested(ask(served.address, *ALL_KINDS))
        assert usual == list(zip(STATUSES, (1, 1, 1, 0, 0, 0, 0), strict=True))
        assert chosen == list(zip(STATUSES, (2, 2, 2, 3, 3, 3, 3), strict=True))
    with broker(path, slave_read_enable=True) as served:
        assert suggested(ask(served.address, *ALL_KINDS)) == [(status, 3) for status in STATUSES]
    # A slave that cannot know whether an offset is wrong names the group's broker, as RocketMQ's.
    with broker(path, broker_role="SLAVE", broker_id=1, **no_memory) as served:
        told = suggested(ask(served.address, *ALL_KINDS))
        assert told == list(zip(STATUSES, (0, 0, 0, 0, 3, 3, 0), strict=True))


def test_how_far_back_is_counted_from_the_last_message_that_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.sysconf
    memory = {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": 2500}
    monkeypatch.setattr(os, "sysconf", lambda name: memory.get(name) or real(name))
    for percent in (40, 80):
        ratio = {"access_message_in_memory_max_ratio": percent, "slave_read_enable": True}
        with broker(tmp_path / str(percent), **ratio) as served:
            send(served, 12, 200)
            (size,) = {len(each) for each in records_in(ask(served.address, pull(10))[0].body)}
            asked = [(offset, most) for offset in range(12) for most in (1, 2, 3)]
            answers = ask(served.address, *(pull(at, maxMsgNums=str(most)) for at, most in asked))
            lasts = [number(answer, "nextBeginOffset") - 1 for answer in answers]
            assert lasts == [min(at + most, 12) - 1 for at, most in asked]
            far = [int((12 - last) * size > 2500 * percent // 100) for last in lasts]
            assert 0 < sum(far) < len(far)
            assert [each for _, each in suggested(answers)] == far


def test_messages_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with broker(path, mapped_file_size_consume_queue=40) as served:
        send(served, 4, 400_000)  # two in a segment, and in a file of the queue
        segment = path / "commitlog" / f"{0:020}"
        aside = segment.rename(path / "aside")
        removing, behind = ask(served.address, pull(0, maxMsgNums="2"), pull(2, maxMsgNums="1"))
        aside.rename(segment)
        os.truncate(path / "consumequeue" / "orders" / "0" / f"{0:020}", 0)
        null, found = ask(served.address, pull(0), pull(2, maxMsgNums="1"))
        os.truncate(path / "consumequeue" / "orders" / "0" / f"{0:020}", 40)
    told = [
        (each.code, each.remark, number(each, "nextBeginOffset"), len(records_in(each.body)))
        for each in (removing, behind, null, found)
    ]
    assert told == [
        (20, "MESSAGE_WAS_REMOVING", 2, 0),
        (0, "FOUND", 3, 1),
        (19, "OFFSET_FOUND_NULL", 2, 0),
        (0, "FOUND", 3, 1),
    ]


def test_of_segments_that_are_gone_only_their_messages_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with broker(path, mapped_file_size_commit_log=40_000) as served:
        send(served, 9, 12_000)  # three in a segment
        first, second, _ = sorted((path / "commitlog").glob("0*"))
        for gone, at, told in (
            (first, 0, ("MESSAGE_WAS_REMOVING", 3, 0)),
            (second, 0, ("FOUND", 3, 3)),
            (second, 3, ("MESSAGE_WAS_REMOVING", 6, 0)),
            (second, 6, ("FOUND", 9, 3)),
        ):
            aside = gone.rename(path / "aside")
            answer = one(served, at)
            aside.rename(gone)
            found = len(records_in(answer.body))
            assert (answer.remark, number(answer, "nextBeginOffset"), found) == told


def one(served: Served, offset: int) -> Command:
    """Return the answer to a pull."""
    return ask(served.address, pull(offset))[0]


def test_messages_on_disk_are_read_by_a_thread_that_may_wait(on_disk: Path) -> None:
    path = on_disk / "store"
    with broker(path) as served:
        send(served, 3)
        hot = ask(served.address, pull(0), pull(1, sysFlag="6", suspendTimeoutMillis="20000"))
        reader = served.store.queue_reader()
        try:
            for folder in ("commitlog", "consumequeue"):
                files = [file for file in path.glob(f"{folder}/**/0*") if file.is_file()]
                is_refused_when_cold(files, lambda: reader.read("orders", 0, 0, 32, may_wait=False))
                cold = ask(served.address, pull(0), pull(1, sysFlag="6"))
                assert [each.body for each in cold] == [each.body for each in hot]
                assert reader.read("orders", 0, 0, 32, may_wait=False).data == hot[0].body
        finally:
            reader.close()


def test_who_comes_after_the_expiry_begins_with_what_is_left(tmp_path: Path) -> None:
    with broker(tmp_path / "store") as served:
        send(served, 6, 400_000)
        end = served.store.clock() + 1
        served.store.expire(end)
        eventually(lambda: not served.store.expirable(end).is_working)
        late: Any = ask(served.address, pull(0), pull(1, sysFlag="6", suspendTimeoutMillis="20000"))
        least = number(late[0], "minOffset")
        assert least > 0
        for answer in late:
            assert (answer.code, answer.remark) == (21, "OFFSET_TOO_SMALL")
            assert number(answer, "nextBeginOffset") == least
        (found,) = ask(served.address, pull(least))
        assert (found.code, number(found, "nextBeginOffset")) == (0, least + 1)
