"""A leader pushes to a broker of RocketMQ, which keeps what it cannot append yet."""

from __future__ import annotations

from dataclasses import dataclass, field

from rmqstore_spark.consensus.ledger import MemberLedger
from rmqstore_spark.consensus.messages import MemberCode, Push, PushAnswer, PushType
from rmqstore_spark.consensus.pushing import Pusher
from rmqstore_spark.consensus.timing import Timing

LONG = 100_000


@dataclass
class Broker:
    """What `DLedgerEntryPusher.EntryHandler` of 0.3.1.2 does with pushes.

    Attributes:
        end: of its ledger, which begins at 0.
        kept: pushes that do not follow its ledger, by their first entry, without an answer.
    """

    end: int = -1
    kept: dict[int, Push] = field(default_factory=dict)

    def take(self, push: Push) -> PushAnswer | None:
        """Answer a request; None if there is no answer, or one of code 413."""
        if push.type is PushType.APPEND:
            self.kept.setdefault(push.first, push)
            return self._append(self.end + 1) if push.first == self.end + 1 else None
        self.kept.clear()
        has_it = push.type is PushType.TRUNCATE or push.last <= self.end
        if push.type is PushType.TRUNCATE:
            self.end = push.last
        return self._answer(push, has_it)

    def _append(self, first: int) -> PushAnswer:
        push = self.kept.pop(first)
        self.end = push.last
        return self._answer(push, True)

    def _answer(self, push: Push, is_well: bool) -> PushAnswer:
        code = MemberCode.SUCCESS if is_well else MemberCode.INCONSISTENT_STATE
        return PushAnswer(push.type, code, push.term, push.last, 0, self.end)


def test_a_push_whose_answer_was_lost_holds_up_no_later_one() -> None:
    ledger, timing, broker = MemberLedger(0, 3, [(0, 1)]), Timing(batch=4), Broker(1)
    pusher = Pusher(ledger, timing, lambda _, last: last)
    now = number = 0
    is_cut = False
    while broker.end < 20 and now < LONG:
        while (due := pusher.due(now, -1)) is not None:
            number += 1
            push = Push(due[0], 1, "n0", due[1], due[2], -1)
            pusher.sent(number)
            answer = None if is_cut else broker.take(push)
            if push.type is PushType.APPEND and ledger.end != 20:
                is_cut = True  # its answer is the first that is lost
                ledger.write(20, [])  # so what comes again reaches further
            elif answer is not None:
                pusher.answered(number, push, answer, now)
        now = max(pusher.wake, now + 1)
        is_cut = is_cut and now < timing.push_wait
    assert broker.end == 20
    assert now < 3 * timing.compare_wait


def test_a_peer_that_refuses_all_entries_is_not_asked_without_a_pause() -> None:
    """Its segments have another size: it has what was compared, and no place for what follows."""
    pusher = Pusher(MemberLedger(0, 5, [(0, 1)]), Timing(), lambda _, last: last)
    asked = 0
    for now in range(10_000):
        while (due := pusher.due(now, 5)) is not None:
            asked += 1
            kind, first, last = due
            pusher.sent(asked)
            code = MemberCode.SUCCESS if kind is PushType.COMPARE else MemberCode.INCONSISTENT_STATE
            push = Push(kind, 1, "n0", first, last, 5)
            pusher.answered(asked, push, PushAnswer(kind, code, 1, last, 0, 2), now)
    assert asked <= 3 * 10_000 / Timing().retry


def test_one_that_loses_its_last_entries_gets_them_at_once() -> None:
    pusher = Pusher(MemberLedger(0, 5, [(0, 1)]), Timing(), lambda _, last: last)

    def answer(number: int, code: MemberCode, end: int) -> PushType:
        due = pusher.due(1, 5)
        assert due is not None
        pusher.sent(number)
        push = Push(due[0], 1, "n0", due[1], due[2], 5)
        pusher.answered(number, push, PushAnswer(due[0], code, 1, due[2], 0, end), 1)
        return due[0]

    assert answer(1, MemberCode.INCONSISTENT_STATE, 3) is PushType.COMPARE
    assert answer(2, MemberCode.SUCCESS, 3) is PushType.COMPARE
    assert answer(3, MemberCode.SUCCESS, 5) is PushType.APPEND
    pusher._ledger.write(7, [(6, 1)])
    assert answer(4, MemberCode.INCONSISTENT_STATE, 3) is PushType.APPEND
    assert answer(5, MemberCode.INCONSISTENT_STATE, 3) is PushType.COMPARE


def test_a_peer_that_has_lost_entries_is_not_counted_for_them() -> None:
    """It says so in any answer: a leader that has more to push does not wait for an idle moment."""
    ledger, timing = MemberLedger(0, 5, [(0, 1)]), Timing()
    pusher = Pusher(ledger, timing, lambda _, last: last)
    due = pusher.due(0, -1)
    assert due is not None
    pusher.sent(1)
    compared = Push(due[0], 1, "n0", due[1], due[2], -1)
    had = PushAnswer(compared.type, MemberCode.SUCCESS, 1, 5, 0, 5)
    pusher.answered(1, compared, had, 1)
    assert pusher.match == 5
    ledger.write(6, [(6, 1)])
    assert pusher.due(2, -1) == (PushType.APPEND, 6, 6)
    pusher.sent(2)
    pushed = Push(PushType.APPEND, 1, "n0", 6, 6, -1)
    lost = PushAnswer(PushType.APPEND, MemberCode.INCONSISTENT_STATE, 1, 6, 0, -1)
    pusher.answered(2, pushed, lost, 3)
    assert pusher.match == -1


def test_a_peer_that_does_not_answer_is_compared_with_again_before_it_is_cut() -> None:
    """It may have lost its files meanwhile, and would begin its ledger in the middle."""
    timing = Timing()
    pusher = Pusher(MemberLedger(0, 9, [(0, 1)]), timing, lambda _, last: last)
    assert pusher.due(0, -1) == (PushType.COMPARE, 9, 9)
    pusher.sent(1)
    compared = Push(PushType.COMPARE, 1, "n0", 9, 9, -1)
    other = MemberCode.INCONSISTENT_STATE
    pusher.answered(1, compared, PushAnswer(PushType.COMPARE, other, 1, 9, 6, 9), 0)
    number, now = 1, 0
    while (due := pusher.due(now, -1)) is not None and due[0] is PushType.COMPARE:
        number += 1
        pusher.sent(number)
        code = MemberCode.SUCCESS if due[1] <= 6 else other
        pusher.answered(number, compared, PushAnswer(PushType.COMPARE, code, 1, due[1], 6, 9), now)
    assert due == (PushType.TRUNCATE, 6, 6)
    pusher.sent(number + 1)
    assert pusher.due(timing.compare_wait - 1, -1) is None
    assert pusher.due(timing.compare_wait, -1) == (PushType.COMPARE, 9, 9)
