from __future__ import annotations

import threading

from rmqstore_spark.engine.log.published_end import PublishedEnd
from tests.support.waiting import PATIENCE, eventually


def _waiting(end: PublishedEnd, offset: int) -> tuple[threading.Thread, list[bool]]:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(end.wait_beyond(offset, PATIENCE)))
    thread.start()
    eventually(lambda: bool(end._waiting))
    return thread, found


def test_a_wait_ends_when_the_end_moves() -> None:
    end = PublishedEnd(7)
    assert end.wait_beyond(6, PATIENCE)
    thread, found = _waiting(end, 7)
    end.move(8)
    thread.join(PATIENCE / 2)
    assert found == [True]


def test_a_wait_ends_when_it_is_woken() -> None:
    end = PublishedEnd(7)
    thread, found = _waiting(end, 7)
    end.wake()
    thread.join(PATIENCE / 2)
    assert found == [False]
