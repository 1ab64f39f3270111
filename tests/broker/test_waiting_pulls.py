"""The pulls that wait: which of them a message concerns."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqstore_spark.broker.core.consumers.pulls import Pull
from rmqstore_spark.broker.core.consumers.waiting_pulls import WaitingPulls
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import Request

QUEUES = [("orders", 0), ("orders", 1)]
TAGS = st.none() | st.sets(st.integers(-2, 2), max_size=3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 1), st.integers(0, 2), TAGS),
        st.tuples(st.just("remove"), st.integers(0, 40)),
        st.tuples(st.just("grow"), st.integers(0, 1), TAGS),
        st.tuples(st.just("close"), st.integers(0, 2)),
    ),
    max_size=40,
)


def made(queue: int, connection: int, offset: int, tags: set[int] | None) -> Pull:
    topic, queue_id = QUEUES[queue]
    codes = None if tags is None else np.array(sorted(tags), np.int32)
    command = Command(RequestCode.PULL_MESSAGE)
    request = Request(cast(Any, connection), command, cast(Any, None), 0.0)
    found = Pull("consumers", topic, queue_id, offset, 32, 20.0, -1, True, "TAG", "*", 0)
    found.asker, found.codes = request, codes
    return found


@settings(max_examples=60)
@given(STEPS)
def test_a_message_concerns_those_that_want_its_tag(steps: list[Any]) -> None:
    held, waiting = WaitingPulls(), list[Pull]()
    wanted: dict[Pull, set[int] | None] = {}
    ends = [10, 20]
    for step in steps:
        if step[0] == "add":
            _, queue, connection, tags = step
            pull = made(queue, connection, ends[queue], tags)
            assert held.add(pull)
            waiting.append(pull)
            wanted[pull] = tags
        elif step[0] == "remove" and waiting:
            held.remove(waiting.pop(step[1] % len(waiting)))
        elif step[0] == "grow" and QUEUES[step[1]] in held:
            _, queue, arrived = step
            begin = held.tested(QUEUES[queue])
            assert begin <= ends[queue]
            ends[queue] += 5
            found = held.concerned(QUEUES[queue], ends[queue], arrived)
            expected = {
                pull
                for pull in waiting
                if pull.queue == QUEUES[queue]
                and (arrived is None or wanted[pull] is None or wanted[pull] & arrived)
            }
            assert len(found) == len(expected)
            assert set(found) == expected
            assert all(begin <= pull.offset < ends[queue] for pull in found)
        elif step[0] == "close":
            gone = held.of_connection(step[1])
            assert set(gone) == {each for each in waiting if each.asker.connection == step[1]}
            for pull in gone:
                held.remove(pull)
                waiting.remove(pull)
        assert len(held) == len(waiting)
        assert set(held.all()) == set(waiting)
        for queue in QUEUES:
            assert (queue in held) == any(pull.queue == queue for pull in waiting)


def test_what_waits_is_bounded() -> None:
    held = WaitingPulls()
    first = [made(0, 0, 10, {1}) for _ in range(64)]
    assert all(held.add(pull) for pull in first)
    assert not held.add(made(0, 0, 10, {2}))
    assert held.add(made(1, 0, 10, {2}))
    others = [made(0, n // 64 + 1, 10, {1}) for n in range(10_000 - 64)]
    assert all(held.add(pull) for pull in others)
    assert not held.add(made(0, 1000, 10, {1}))
    held.remove(first[0])
    assert held.add(made(0, 1000, 10, {1}))
    # Sets of tags count, each once.
    held, size = WaitingPulls(), 1 << 14
    sets = [set(range(n, n + size)) for n in range(16)]
    pulls = [made(0, n, 10, each) for n, each in enumerate(sets)]
    assert all(held.add(pull) for pull in pulls)
    assert not held.add(made(0, 100, 10, {-1}))
    assert held.add(made(0, 100, 10, sets[3]))
    assert held.add(made(0, 100, 10, None))
    held.remove(pulls[0])
    assert held.add(made(0, 100, 10, {-1}))
