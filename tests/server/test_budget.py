"""Room that many clients share: who gets it next."""

from __future__ import annotations

import threading

import pytest

from rmqstore_spark.server.budget import Budget, OverBudgetError
from tests.support.waiting import PATIENCE, eventually


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


def test_who_gets_no_room_in_time_leaves_the_queue() -> None:
    budget = Budget(2)
    budget.take(2, PATIENCE)
    for is_known in (False, True):
        with pytest.raises(OverBudgetError):
            budget.take(1, 0.01, is_known=is_known)
    assert not budget.is_contended
    budget.give_back(2)
    assert budget.try_take(1)
