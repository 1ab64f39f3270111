from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from rmqstore_spark.errors import RowError
from rmqstore_spark.layout.index.hashing import java_hash_code_str
from rmqstore_spark.produce.queue_choice import Queues, Router

# Queue numbers of each topic on each of two stores.
QUEUES = {"A": (4, 0), "B": (2, 3), "C": (0, 5)}


def queues_of(topic: str) -> Queues:
    return Queues.of(QUEUES[topic])


def router(first_turn: int = 0, *, by_key: bool = True) -> Router:
    """A router as a sink's task makes it."""
    return Router(queues_of, by_key=by_key, first_turn=first_turn, all_take_turns=True)


def route(
    made: Router,
    topics: Sequence[str],
    keys: Sequence[str | None] | None = None,
    queue_ids: Sequence[int | None] | None = None,
    contents: Sequence[int] | None = None,
) -> list[tuple[int, int]]:
    routed = made.route(
        pa.array(topics, pa.string()),
        None if keys is None else pa.array(keys, pa.string()),
        None if queue_ids is None else pa.array(queue_ids, pa.int64()),
        None if contents is None else np.array(contents, np.int64),
    )
    return list(zip(routed.store.tolist(), routed.queue_id.tolist(), strict=True))


def test_queues_are_numbered_store_by_store() -> None:
    queues = Queues.of((2, 0, 3))
    assert queues.store.tolist() == [0, 0, 2, 2, 2]
    assert queues.queue_id.tolist() == [0, 1, 0, 1, 2]
    assert len(Queues.of((0, 0))) == 0


# "polygenelubricants" has the hash code Integer.MIN_VALUE, whose abs() overflows in Java.
@pytest.mark.parametrize("key", ["order-1", "é", "polygenelubricants", "a b", "𝄞"])
def test_a_hash_is_that_of_select_message_queue_by_hash(key: str) -> None:
    code = java_hash_code_str(key)
    remainder = abs(code) % 4 if code >= 0 else -((-code) % 4)  # Java's: of the dividend's sign
    assert route(router(), ["A"], [key]) == [(0, abs(remainder))]
    assert java_hash_code_str("polygenelubricants") == -(2**31)


def test_rows_that_share_a_key_share_a_queue_wherever_they_come() -> None:
    first = route(router(3), ["B", "A", "B"], ["k", "k", "k"])
    second = route(router(9), ["B"], ["k"])
    assert first[0] == first[2] == second[0]


def test_rows_without_a_key_take_turns_topic_by_topic() -> None:
    made = router()
    assert route(made, ["A", "B", "A", "B", "A"], [None, "", None, None, ""]) == [
        (0, 0), (0, 0), (0, 1), (0, 1), (0, 2),
    ]  # fmt: skip
    # The next batch continues.
    assert route(made, ["A", "A", "B", "B", "B", "B"]) == [
        (0, 3), (0, 0), (1, 0), (1, 1), (1, 2), (0, 0),
    ]  # fmt: skip


def test_roundrobin_does_not_look_at_keys() -> None:
    assert route(router(2, by_key=False), ["C"] * 4, ["k"] * 4) == [(1, 2), (1, 3), (1, 4), (1, 0)]


def test_a_replay_goes_where_the_first_run_went() -> None:
    topics = ["A", "B", "B", "C"] * 50
    keys = [None, "x", None, "y"] * 50
    whole = route(router(7), topics, keys)
    made = router(7)
    # However Spark cuts the partition into batches.
    parts = [route(made, topics[a:b], keys[a:b]) for a, b in ((0, 1), (1, 130), (130, 200))]
    assert [place for part in parts for place in part] == whole


def test_a_producer_counts_only_the_messages_that_nothing_else_places() -> None:
    made = Router(queues_of)
    keys = ["k", None, "", "k", None, None]
    placed = route(made, ["A"] * 6, keys, [None, None, None, None, 3, None])
    hashed = (0, abs(java_hash_code_str("k")) % 4)
    assert placed == [hashed, (0, 0), (0, 1), hashed, (0, 3), (0, 2)]
    counted = route(router(), ["A"] * 4, keys[:4])
    assert counted == [hashed, (0, 1), (0, 2), hashed]


def test_a_column_says_the_queue_and_turns_or_keys_the_store() -> None:
    assert route(router(), ["A", "C", "A"], None, [3, 4, 0]) == [(0, 3), (1, 4), (0, 0)]
    # B has the queues 0 and 1 on both stores, 2 on the second alone.
    assert route(router(), ["B"] * 5, None, [0, 0, 2, 1, 1]) == [
        (0, 0), (1, 0), (1, 2), (1, 1), (0, 1),
    ]  # fmt: skip
    by_key = route(router(), ["B"] * 4, ["k"] * 4, [0, 1, 0, 1])
    assert len({store for store, _ in by_key}) == 1
    assert [queue for _, queue in by_key] == [0, 1, 0, 1]


def test_a_content_says_the_store_wherever_its_row_comes_and_a_turn_the_queue_there() -> None:
    contents = [0, 1, 2, 3, 4, 2**62, 0, 0]
    first = route(router(), ["B"] * 8, None, None, contents)
    # Two of five queues are at the first store.
    assert first == [(0, 0), (0, 1), (1, 2), (1, 0), (1, 1), (1, 2), (0, 0), (0, 1)]
    later = route(router(5), ["B"] * 8, None, None, contents[::-1])
    assert [store for store, _ in later] == [store for store, _ in first[::-1]]
    assert len(set(later)) == 5
    keyed = route(router(), ["B"] * 3, ["k", None, "k"], None, [0, 0, 4])
    assert keyed[0] == keyed[2] == route(router(), ["B"], ["k"])[0]
    # Queue 2 of B is at the second store alone.
    assert route(router(), ["B"] * 3, None, [0, 0, 2], [6, 7, 8]) == [(0, 0), (1, 0), (1, 2)]


@pytest.mark.parametrize(
    ("ids", "row", "words"),
    [
        ([0, 1, 4], 2, "queueId 4, but topic 'A' has queues 0 to 3"),
        ([-1], 0, "queueId -1"),
    ],
)
def test_queues_that_do_not_exist(ids: list[int], row: int, words: str) -> None:
    with pytest.raises(RowError, match=words) as caught:
        route(router(), ["A"] * len(ids), None, ids)
    assert caught.value.row == row
