"""The queue in which owners of jobs take turns, against a plain model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.broker.fair_queue import FairQueue


@given(st.lists(st.one_of(st.tuples(st.just("add"), st.integers(0, 4)), st.just("take"))))
def test_owners_take_turns_and_each_keeps_its_order(steps: list[tuple[str, int] | str]) -> None:
    queue: FairQueue[tuple[int, int]] = FairQueue()
    waiting: dict[int, list[int]] = {}
    turns: list[int] = []
    for number, step in enumerate(steps):
        if step == "take":
            taken = queue.take(1)
            if not turns:
                assert taken == []
                continue
            owner = turns.pop(0)
            assert taken == [(owner, waiting[owner].pop(0))]
            if waiting[owner]:
                turns.append(owner)
        else:
            owner = int(step[1])
            queue.add(owner, (owner, number))
            waiting.setdefault(owner, []).append(number)
            if owner not in turns:
                turns.append(owner)
        assert len(queue) == sum(map(len, waiting.values()))


def test_many_are_taken_one_of_each() -> None:
    queue: FairQueue[str] = FairQueue()
    for job in "aaaaabbc":
        queue.add(job, job)
    assert queue.take(7) == list("abcabaa")
    assert queue.take(7) == ["a"]


def test_the_owner_with_most_makes_room_for_those_with_fewer() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(5):
        queue.add("greedy", number)
    assert queue.take_from_longest("other") == 4
    assert queue.take_from_longest("greedy") is None
    queue.add("other", 9)
    assert queue.take_from_longest("other") == 3
    queue.add("other", 9)
    assert queue.take_from_longest("other") is None  # three and two: nobody has much more
    assert len(queue) == 5
