"""One that must lead does so soon, though another is ahead in terms and asks for votes too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmqstore_spark.consensus.member import GroupMember
from tests.consensus.elections import AsDLedger, Election

SEEDS = range(300)
SOON = 13 * 1000
"""Three heartbeats without a leader, then a round of votes that fails, and one more."""
LATER = 10 * 2000
"""One of RocketMQ asks first in the other's term, too."""


class RemembersNoTerm(GroupMember):
    """Asks for votes in terms in which those that it has refused have voted for themselves."""

    def _voted(self, *of: Any) -> Any:
        before, answer = self._next_term, super()._voted(*of)
        self._next_term = before
        return answer


class RaisesItsTerm(GroupMember):
    """Asks in the next term at the usual pace, though another has a longer ledger."""

    def _judge(self, *of: Any, **more: Any) -> None:
        super()._judge(*of, **more)
        if not self._in_round and self._round.is_behind:
            self._next_term = max(self._next_term, self.term + 1)
            self._deadline = min(self._deadline, of[0] + self._pause())


def longest(
    longer: Callable[..., GroupMember], shorter: Callable[..., GroupMember], *, refuses: bool
) -> int:
    """Return the milliseconds of the longest election of all seeds."""
    return max(
        Election(seed, longer, shorter, ahead=seed % 4, refuses=refuses).milliseconds()
        for seed in SEEDS
    )


@pytest.mark.parametrize("refuses", [True, False])
@pytest.mark.parametrize(
    ("longer", "shorter", "limit"),
    [
        (GroupMember, GroupMember, SOON),
        (GroupMember, AsDLedger, SOON),
        (AsDLedger, GroupMember, LATER),
        (AsDLedger, AsDLedger, LATER),
    ],
)
def test_the_longer_ledger_leads_soon(
    longer: type[GroupMember], shorter: type[GroupMember], limit: int, *, refuses: bool
) -> None:
    assert longest(longer, shorter, refuses=refuses) < limit


@pytest.mark.parametrize("longer", [RemembersNoTerm, AsDLedger])
def test_one_that_cannot_lead_keeps_its_term(longer: type[GroupMember]) -> None:
    assert longest(longer, RaisesItsTerm, refuses=False) > 4 * LATER
    assert longest(longer, GroupMember, refuses=False) < LATER


def test_one_that_can_lead_asks_in_higher_terms_than_it_has_heard() -> None:
    assert longest(RemembersNoTerm, GroupMember, refuses=False) > SOON
