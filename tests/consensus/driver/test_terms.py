"""Terms that no group can have reached, and those that one has because of a lie."""

from __future__ import annotations

from rmqstore_spark.consensus.actions import Save
from rmqstore_spark.consensus.driver.checks import FarTerms, why_no_term
from rmqstore_spark.consensus.ledger import MemberLedger
from rmqstore_spark.consensus.member import GroupMember
from rmqstore_spark.consensus.messages import LeaderHeartbeat, VoteAnswer, VoteVerdict

FAR = 1 << 40
GROUP = ("n0", "n1", "n2", "n3", "n4")


def member() -> GroupMember:
    saved = Save(3, None, is_voter=True)
    return GroupMember("n0", GROUP, saved, MemberLedger(0, -1, []), now=0, chance=lambda: 0.0)


def told(term: int) -> VoteAnswer:
    return VoteAnswer(term, VoteVerdict.REJECT_EXPIRED_VOTE_TERM)


def test_a_far_term_is_believed_when_a_quorum_answers_with_one() -> None:
    terms, mine = FarTerms(3), member()
    assert terms.why_no_term("n1", told(FAR), mine)
    assert terms.why_no_term("n1", told(FAR + 1), mine)
    assert terms.why_no_term("n2", told(FAR), mine)
    assert terms.why_no_term("n3", told(FAR + 5), mine) is None
    assert terms.why_no_term("n1", told(FAR), mine) is None


def test_a_lie_lifts_the_term_no_further_than_the_others_are() -> None:
    terms, mine = FarTerms(3), member()
    assert terms.why_no_term("n1", told(FAR), mine)
    assert terms.why_no_term("n2", told(FAR + 1), mine)
    why = terms.why_no_term("n3", told((1 << 62) - 1), mine)
    assert why == f"its term {(1 << 62) - 1} is too far ahead of the one known here, 3, to be true"
    assert terms.why_no_term("n3", told(4), mine) is None
    assert terms.why_no_term("n1", told(FAR), mine)  # n3 says so no more


def test_who_asks_is_not_believed() -> None:
    """Anybody can say that it is a peer, and each of them."""
    assert why_no_term(LeaderHeartbeat(FAR, "n1"), member())
    assert why_no_term(LeaderHeartbeat(4, "n1"), member()) is None
