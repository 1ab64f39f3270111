"""The harness over all decoders, for a moment: `python -m tests.fuzz` runs it for long."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from rmqstore_spark.layout import kernel
from tests.fuzz.decoders import DECODERS, check
from tests.fuzz.seeds import mutated, seeds

ROUNDS = 150

by_name = pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.__name__)


@by_name
def test_sound_bytes_are_taken(decoder: Callable[[bytes], Any]) -> None:
    sound = [check(decoder, data) for data in seeds(decoder)]
    assert any(not _is_refusal(found) for found in sound)


@by_name
def test_promise_8_any_bytes_are_taken_or_refused(decoder: Callable[[bytes], Any]) -> None:
    given = random.Random(decoder.__name__)
    known = seeds(decoder)
    for _ in range(ROUNDS):
        data = mutated(given.choice(known), given)
        check(decoder, data)
        if len(known) < 50:
            known.append(data)


def test_a_difference_between_the_kernels_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernel.COMPILED:
        pytest.skip("the compiled kernel was not built on this machine")
    seen = iter(range(2))
    with pytest.raises(AssertionError):
        check(lambda _: next(seen), b"")


def test_an_error_that_is_not_declared_is_seen() -> None:
    with pytest.raises(ZeroDivisionError):
        check(lambda data: 1 // len(data), b"")


def _is_refusal(found: Any) -> bool:
    return isinstance(found, tuple) and isinstance(found[0], str) and found[0].endswith("Error")
