"""The cache of encoded answers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.namesrv.tables import AnswerCache


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 1500))))
def test_the_cache_is_bounded_and_returns_what_was_kept(asked: list[tuple[str, int]]) -> None:
    cache = AnswerCache(2000)
    made: dict[str, bytes] = {}
    for name, size in asked:
        found = cache.get(name)
        if found is not None:
            assert found == made[name]
            cache.forget(name)
        made[name] = bytes(size)
        cache.keep(name, made[name])
        assert cache.get(name) == made[name]
        assert sum(len(answer) for key in made if (answer := cache.get(key))) <= cache.held <= 2000
    cache.clear()
    assert cache.held == 0


def test_the_oldest_answer_makes_room_and_one_too_large_is_not_kept() -> None:
    cache = AnswerCache(1000)
    cache.keep("a", bytes(200))
    cache.keep("b", bytes(200))
    cache.keep("c", bytes(200))
    assert cache.get("a") is None
    assert cache.get("b") is not None
    cache.keep("d", bytes(1000))
    assert cache.get("d") is None
    assert cache.get("b") is not None
