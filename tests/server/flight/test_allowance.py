"""How many frames without data a connection may have."""

from __future__ import annotations

import pytest

from rmqstore_spark.server.flight.allowance import FrameAllowance
from rmqstore_spark.server.flight.frames import ErrorCode, ProtocolError


def until_refused(allowance: FrameAllowance, most: int = 5_000) -> int:
    """How many frames pass."""
    for number in range(most):
        try:
            allowance.frame()
        except ProtocolError:
            return number
    return most


def test_a_stranger_pays_with_nothing() -> None:
    now = [0.0]
    allowance = FrameAllowance(lambda: now[0])
    allowance.data(1 << 20)
    allowance.call()
    now[0] = 100.0
    assert until_refused(allowance) == 200


def test_time_data_and_what_was_sent_pay_for_frames() -> None:
    now = [0.0]
    allowance = FrameAllowance(lambda: now[0])
    allowance.trust()
    assert until_refused(allowance) == 1_000
    now[0] += 1
    assert until_refused(allowance) == 199  # the frame that was refused has been counted
    allowance.data(64)
    for _ in range(5_000):
        allowance.data(64)
        allowance.frame()
    allowance.sent(100 << 10)
    assert until_refused(allowance) == 100
    allowance.sent(100 << 10)  # has been counted
    assert until_refused(allowance) == 0


def test_time_pays_however_short_the_steps() -> None:
    now = [0.0]
    allowance = FrameAllowance(lambda: now[0])
    allowance.trust()
    assert until_refused(allowance) == 1_000
    now[0] += 0.01
    for _ in range(2_000):  # 100 a second
        now[0] += 0.01
        allowance.frame()


def test_calls_that_are_given_up_cost_what_they_were_worth() -> None:
    allowance = FrameAllowance(lambda: 0.0)
    allowance.trust()

    def give_up() -> None:
        allowance.frame()
        allowance.call()
        allowance.frame()
        allowance.reset()

    with pytest.raises(ProtocolError) as refused:
        for _ in iter(give_up, True):
            pass
    assert refused.value.code == ErrorCode.ENHANCE_YOUR_CALM


def test_many_calls_that_end_are_allowed() -> None:
    allowance = FrameAllowance(lambda: 0.0)
    allowance.trust()
    for _ in range(10_000):
        for _ in range(6):  # headers, data, a ping, windows
            allowance.frame()
        allowance.call()
