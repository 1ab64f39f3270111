"""Room that many clients share: who gets it next."""

from __future__ import annotations

import threading

import pytest

from rmqstore_spark.server.budget import Budget, OverBudgetError, Room
from tests.support.waiting import PATIENCE, eventually

_PART = 50 << 10


@pytest.mark.parametrize(("many", "one"), [("new", "known"), ("known", "new")])
def test_one_client_does_not_wait_for_all_of_the_other_kind(many: str, one: str) -> None:
    budget, served = Budget(1), list[str]()
    budget.take(1, PATIENCE)

    def use(kind: str) -> None:
        budget.take(1, PATIENCE, is_known=kind == "known")
        served.append(kind)
        budget.give_back(1)

    threads = []
    for number, kind in enumerate([many] * 20 + [one], 1):
        threads.append(threading.Thread(target=use, args=(kind,)))
        threads[-1].start()
        eventually(lambda: sum(map(len, budget._queues)) == number)  # noqa: B023 - called at once
    budget.give_back(1)
    for thread in threads:
        thread.join(PATIENCE)
    assert len(served) == 21
    assert served.index(one) <= 1
    assert budget.used == 0


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (Room(40 * _PART, 20 * _PART).of(10), [11, 15, 15, 19]),
        (Budget(20 * _PART), [19, 15, 11, 15]),
    ],
)
def test_small_messages_wait_in_the_order_of_their_sizes(room: Budget, expected: list[int]) -> None:
    served = list[int]()
    room.take(20 * _PART, PATIENCE)

    def use(size: int) -> None:
        room.take(size * _PART, PATIENCE)
        served.append(size)
        room.give_back(size * _PART)

    threads = []
    for number, size in enumerate((19, 15, 11, 15), 1):
        threads.append(threading.Thread(target=use, args=(size,)))
        threads[-1].start()
        eventually(lambda: sum(map(len, room._queues)) == number)  # noqa: B023 - called at once
    room.give_back(20 * _PART)
    for thread in threads:
        thread.join(PATIENCE)
    assert served == expected


def test_who_gets_no_room_in_time_leaves_the_queue() -> None:
    budget = Budget(2)
    budget.take(2, PATIENCE)
    for is_known in (False, True):
        with pytest.raises(OverBudgetError):
            budget.take(1, 0.01, is_known=is_known)
    assert not budget.is_contended
    budget.give_back(2)
    assert budget.try_take(1)
