"""Terms that no group can have reached."""

from __future__ import annotations

import time

from rmqstore_spark.consensus.driver.checks import why_no_term
from rmqstore_spark.consensus.messages import MOST_TERM


def test_the_bound_moves_on_and_is_the_same_for_all() -> None:
    now = round(time.time() * 1000)
    assert why_no_term(now << 20) is None
    why = why_no_term(MOST_TERM)
    assert why is not None
    assert why.startswith(f"its term {MOST_TERM} is more than a group can have reached by ")
    assert why_no_term((now + 3_600_000) << 20)


def test_elections_of_a_century_have_room() -> None:
    a_day = 86_400_000
    assert (round(time.time() * 1000) + 70 * 365 * a_day) << 20 < MOST_TERM
