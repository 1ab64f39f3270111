"""Half messages that wait at a follower, whose queues and progress come from a leader."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqstore_spark.base.types import HalfId
from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.engine.transactions.followed import FollowedHalves
from rmqstore_spark.layout.constants import TRANS_GROUP, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from tests.support.processes.halving import ends, half_config, put_halves, waiting_in

ALL = 1 << 60


def bodies(name: str, count: int) -> list[bytes]:
    return [f"{name} {number}".encode() for number in range(count)]


def followed(store: StoreWriter) -> FollowedHalves:
    return FollowedHalves(store._store, lambda: store.published_end)


@pytest.mark.parametrize("has_progress", [True, False])
def test_half_messages_of_queues_that_begin_again_wait(tmp_path: Path, has_progress: bool) -> None:
    """A leader of RocketMQ can let them: the progress of before tells of other messages then."""
    path = tmp_path / "s"
    with StoreWriter.open(path, half_config()) as store:
        assert ends(store, put_halves(store, bodies("old", 5)), is_commit=True) == ["COMMITTED"] * 5
        store.flush()
        if has_progress:
            store.transactions.save()
        halves = followed(store)
        assert halves.oldest(ALL) is None
        for topic in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC):
            store._store.queues.restart(topic, 0)
        store._appender.forget([TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC])
        store.transactions.forget()  # as a follower does
        (new,) = put_halves(store, [b"new"])
        store.flush()
        assert new.queue_offset == 0
        assert halves.oldest(ALL) == followed(store).oldest(ALL) == new.physical_offset
        store.transactions.forget()
    assert [one.place.physical_offset for one in waiting_in(path)] == [new.physical_offset]
    with StoreWriter.open(path, half_config()) as store:
        assert ends(store, [new], is_commit=True) == ["COMMITTED"]


def test_what_the_progress_has_passed_is_forgotten(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "s", half_config()) as store:
        halves, older = followed(store), list[HalfId]()
        for number in range(3):
            passed = put_halves(store, bodies(f"passed {number}", 10))
            (waits,) = put_halves(store, bodies(f"waits {number}", 1))
            store.flush()
            assert halves.oldest(ALL) == (older or passed)[0].physical_offset
            ends(store, passed, is_commit=True)
            ops = store.stats()["queues"][TRANS_OP_HALF_TOPIC]["0"][1]
            store._store.consumer_offsets.commit(
                TRANS_GROUP,
                {TRANS_HALF_TOPIC: {0: waits.queue_offset}, TRANS_OP_HALF_TOPIC: {0: ops}},
            )
            store.flush()
            assert halves.oldest(ALL) == waits.physical_offset
            assert len(halves._open.waiting) == 1, number
            older = [waits]
