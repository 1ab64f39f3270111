from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa
import pytest

from rmqstore_spark.datasource.sink.routing import Router
from rmqstore_spark.datasource.sink.stores import Queues
from rmqstore_spark.errors import RowError
from rmqstore_spark.layout.index.hashing import java_hash_code_str

# Queue numbers of each topic on each of two stores.
QUEUES = {"A": (4, 0), "B": (2, 3), "C": (0, 5)}
Selector = Literal["hash", "roundrobin", "column"]


def router(selector: Selector, first_turn: int = 0) -> Router:
    return Router(selector, lambda topic: Queues.of(QUEUES[topic]), first_turn)


def route(
    made: Router,
    topics: Sequence[str],
    keys: Sequence[str | None] | None = None,
    queue_ids: Sequence[int | None] | None = None,
) -> list[tuple[int, int]]:
    routed = made.route(
        pa.array(topics, pa.string()),
        None if keys is None else pa.array(keys, pa.string()),
        None if queue_ids is None else pa.array(queue_ids, pa.int64()),
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
    assert route(router("hash"), ["A"], [key]) == [(0, abs(remainder))]
    assert java_hash_code_str("polygenelubricants") == -(2**31)


def test_rows_that_share_a_key_share_a_queue_wherever_they_come() -> None:
    first = route(router("hash", 3), ["B", "A", "B"], ["k", "k", "k"])
    second = route(router("hash", 9), ["B"], ["k"])
    assert first[0] == first[2] == second[0]


def test_rows_without_a_key_take_turns_topic_by_topic() -> None:
    made = router("hash")
    assert route(made, ["A", "B", "A", "B", "A"], [None, "", None, None, ""]) == [
        (0, 0), (0, 0), (0, 1), (0, 1), (0, 2),
    ]  # fmt: skip
    # The next batch continues.
    assert route(made, ["A", "A", "B", "B", "B", "B"]) == [
        (0, 3), (0, 0), (1, 0), (1, 1), (1, 2), (0, 0),
    ]  # fmt: skip


def test_roundrobin_does_not_look_at_keys() -> None:
    assert route(router("roundrobin", 2), ["C"] * 4, ["k"] * 4) == [(1, 2), (1, 3), (1, 4), (1, 0)]


def test_a_replay_goes_where_the_first_run_went() -> None:
    topics = ["A", "B", "B", "C"] * 50
    keys = [None, "x", None, "y"] * 50
    whole = route(router("hash", 7), topics, keys)
    made = router("hash", 7)
    # However Spark cuts the partition into batches.
    parts = [route(made, topics[a:b], keys[a:b]) for a, b in ((0, 1), (1, 130), (130, 200))]
    assert [place for part in parts for place in part] == whole


def test_a_column_says_the_queue_and_turns_or_keys_the_store() -> None:
    assert route(router("column"), ["A", "C", "A"], None, [3, 4, 0]) == [(0, 3), (1, 4), (0, 0)]
    # B has the queues 0 and 1 on both stores, 2 on the second alone.
    assert route(router("column"), ["B"] * 5, None, [0, 0, 2, 1, 1]) == [
        (0, 0), (1, 0), (1, 2), (1, 1), (0, 1),
    ]  # fmt: skip
    by_key = route(router("column"), ["B"] * 4, ["k"] * 4, [0, 1, 0, 1])
    assert len({store for store, _ in by_key}) == 1
    assert [queue for _, queue in by_key] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("ids", "row", "words"),
    [
        ([0, None], 1, "has null in column queueId"),
        ([0, 1, 4], 2, "queueId 4, but topic 'A' has queues 0 to 3"),
        ([-1], 0, "queueId -1"),
    ],
)
def test_queues_that_are_none(ids: list[int | None], row: int, words: str) -> None:
    with pytest.raises(RowError, match=words) as caught:
        route(router("column"), ["A"] * len(ids), None, ids)
    assert caught.value.row == row
