"""Which segments a rule selects, against RocketMQ's loop written out."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.engine import StoreConfig
from rmqstore_spark.engine.expiry.rule import Aged, Rule, SteadyClock, stored_before
from rmqstore_spark.errors import OptionError

HOUR = 3_600_000
NOW = 1_700_000_000_000


@st.composite
def logs(draw: st.DrawFn) -> list[Aged]:
    """Segments whose times mostly ascend; a broker's clock may have gone back."""
    steps = draw(st.lists(st.integers(-2, 30), min_size=1, max_size=30))
    times = [NOW - 200 * HOUR + hours * HOUR for hours in accumulate(steps)]
    return [
        Aged(n * 4096, (n + 1) * 4096, first, until)
        for n, (first, until) in enumerate(pairwise(times))
    ]


@given(
    log=logs(), reserved=st.integers(0, 300), hour=st.integers(0, 23),
    disk=st.floats(0, 1), most=st.integers(1, 100), forcibly=st.booleans(),
    limit=st.integers(10, 95), force=st.sampled_from([0.2, 0.85, 1.0]),
    when=st.sets(st.integers(0, 23), min_size=1),
)  # fmt: skip
def test_a_rule_selects_what_rocketmqs_loop_does(
    log: list[Aged], reserved: int, hour: int, disk: float, most: int, forcibly: bool,
    limit: int, force: float, when: set[int],
) -> None:  # fmt: skip
    config = StoreConfig(
        file_reserved_time=reserved, delete_when=";".join(map(str, when)),
        disk_max_used_space_ratio=limit, disk_space_clean_forcibly_ratio=force,
        clean_file_forcibly_enable=forcibly, delete_physic_files_batch_max=most,
    )  # fmt: skip
    clean_at_once = forcibly and disk > force
    space_full = disk > limit / 100 or clean_at_once
    wanted: list[Aged] = []
    if reserved and (hour in when or space_full):
        for segment in log:
            if len(wanted) == most:
                break
            if not (segment.stored_until + reserved * HOUR <= NOW or clean_at_once):
                break
            wanted.append(segment)
    assert Rule.of(config).select(log, NOW, hour, disk) == wanted


@given(log=logs(), hours=st.integers(-300, 300))
def test_by_hand_a_prefix_is_removed_and_nothing_younger(log: list[Aged], hours: int) -> None:
    before = NOW + hours * HOUR
    found = stored_before(log, before)
    assert found == log[: len(found)]
    assert all(segment.stored_until < before for segment in found)
    assert len(found) == len(log) or log[len(found)].stored_until >= before


def test_without_a_time_nothing_expires_however_full_the_disk() -> None:
    rule = Rule.of(StoreConfig(delete_when=";".join(map(str, range(24)))))
    assert rule.select([Aged(0, 4096, 1, 2)], NOW, 4, 1.0) == []


@pytest.mark.parametrize("wrong", ["24", "", "4,5", "-1", "four"])
def test_hours_that_no_day_has(wrong: str) -> None:
    with pytest.raises(OptionError, match="delete_when must be hours from 0 to 23"):
        StoreConfig(delete_when=wrong)


class Times:
    """A clock of the day, and one that runs."""

    def __init__(self) -> None:
        self.day, self.running = NOW, 5_000

    def run(self, millis: int, *, jump: int = 0) -> None:
        self.day += millis + jump
        self.running += millis

    def clock(self) -> SteadyClock:
        return SteadyClock(lambda: self.day, lambda: self.running)


def test_a_clock_set_forward_counts_an_hour_later() -> None:
    times = Times()
    steady = times.clock()
    times.run(1000, jump=100 * HOUR)
    assert steady() == NOW + 1000
    times.run(HOUR // 2)
    assert steady() == NOW + 1000 + HOUR // 2
    times.run(HOUR // 2)
    assert steady() == times.day


def test_a_jump_that_is_taken_back_never_counts() -> None:
    times = Times()
    steady = times.clock()
    times.run(1000, jump=100 * HOUR)
    steady()
    times.run(HOUR // 2, jump=-100 * HOUR)
    assert steady() == times.day == NOW + 1000 + HOUR // 2
    times.run(HOUR)
    assert steady() == times.day


def test_a_clock_set_back_counts_at_once() -> None:
    times = Times()
    steady = times.clock()
    times.run(1000, jump=-7 * HOUR)
    assert steady() == times.day
