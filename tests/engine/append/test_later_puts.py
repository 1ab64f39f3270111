"""Puts to a group's log whose outcome is told later."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.consensus.driver.group import OldLog
from rmqstore_spark.engine.append.later_puts import LaterPuts
from rmqstore_spark.engine.append.member_durability import MemberDurability
from rmqstore_spark.engine.leader_term import LeaderTerm
from rmqstore_spark.engine.log.member_log import MemberLog
from rmqstore_spark.engine.log.segment_files import SegmentFiles
from rmqstore_spark.engine.status import PutResult

LONG_AGO = time.monotonic() - 100


class Group:
    """The log of a member, whose commits a test decides on.

    Attributes:
        told: the outcomes, in the order in which they were told.
        calls: how many times somebody was told that outcomes may be known.
        waits_begun: how many times a put began to wait, and none did before.
    """

    def __init__(self, folder: Path) -> None:
        self.log = MemberLog(
            SegmentFiles(str(folder), str(folder / "ready"), 1 << 16),
            0,
            0,
            0,
            lambda *_: None,
            lambda _: None,
            OldLog(),
        )
        self.log.lead_from(3, 0)
        self.durability = MemberDurability(self.log, 5000)
        self.puts = LaterPuts(self.durability, self._settle)
        self.told: list[tuple[int, PutStatus]] = []
        self.calls = self.waits_begun = 0
        self.puts.watch(self)

    @property
    def term(self) -> LeaderTerm:
        assert self.log.term is not None
        return self.log.term

    def put(self, end: int, since: float | None = None) -> None:
        result = PutResult(PutStatus.PUT_OK, 1, end_offset=end, term=self.term)
        self.puts.add(result, time.monotonic() if since is None else since, self)

    def settled(self, result: PutResult) -> None:
        self.told.append((result.end_offset, result.status))

    def _settle(self, result: PutResult, since: float) -> PutResult:
        lacking = self.durability.await_put(result.end_offset, result.term, since)
        return result if lacking is None else result.with_status(lacking.status, lacking.remark)

    def changed(self) -> None:
        self.calls += 1

    def waits(self) -> None:
        self.waits_begun += 1


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group(tmp_path)


def test_those_that_are_committed_are_told_in_order(group: Group) -> None:
    for end in (100, 200, 300):
        group.put(end)
    assert group.puts.take() is not None
    assert group.told == []
    before = group.calls
    group.log.see(200, 300)
    assert group.calls == before + 1
    ends = group.puts.take()
    assert group.told == [(100, PutStatus.PUT_OK), (200, PutStatus.PUT_OK)]
    assert ends is not None
    assert ends > time.monotonic()
    group.log.see(300, 300)
    assert group.puts.take() is None
    assert group.told[2:] == [(300, PutStatus.PUT_OK)]


def test_nobody_is_forgotten_whose_commit_came_first(group: Group) -> None:
    group.put(100)
    group.put(200)
    group.log.see(300, 300)
    before = group.calls
    group.put(300)
    assert group.calls == before + 1
    assert group.puts.take() is None
    assert len(group.told) == 3


def test_the_first_that_waits_has_its_time_seen_to(group: Group) -> None:
    group.put(100)
    group.put(200)
    assert (group.waits_begun, group.calls) == (1, 0)


def test_a_term_that_is_over_leaves_unknown_what_it_did_not_commit(group: Group) -> None:
    group.put(100)
    group.put(200)
    group.log.see(100, 100)
    group.log.stop_leading()
    assert group.puts.take() is None
    assert group.told == [(100, PutStatus.PUT_OK), (200, PutStatus.SERVICE_NOT_AVAILABLE)]


def test_one_that_cannot_be_told_keeps_nobody_else_from_it(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = group.settled

    def settled(result: PutResult) -> None:
        if result.end_offset == 100:
            raise RuntimeError("the connection has a fault")
        real(result)

    monkeypatch.setattr(group, "settled", settled)
    group.put(100)
    group.put(200)
    group.log.see(200, 200)
    assert group.puts.take() is None
    assert group.told == [(200, PutStatus.PUT_OK)]
    assert "could not be told" in caplog.text


def test_whose_time_is_over_waits_no_more(group: Group) -> None:
    group.put(100, LONG_AGO)
    group.put(200)
    assert group.puts.take() is not None
    assert group.told == [(100, PutStatus.SERVICE_NOT_AVAILABLE)]
