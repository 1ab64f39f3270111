"""The queue in which owners of jobs take turns, against a plain model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.broker.faces.remoting.lanes.worker import FairQueue


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


def test_jobs_of_nobody_have_their_turn_and_make_room_for_none() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(5):
        queue.add(None, number)
    queue.add("one", 5)
    assert queue.take_from_longest("other") is None
    assert queue.take(6) == [0, 5, 1, 2, 3, 4]


def test_all_jobs_of_an_owner_can_be_removed() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(6):
        queue.add(number % 2, number)
    assert list(queue.remove(0)) == [0, 2, 4]
    assert list(queue.remove(0)) == []
    assert len(queue) == 3
    assert queue.take(9) == [1, 3, 5]
