"""Members and disks that keep one rule less: those that DLedger 0.3.1.2 lacks, and some of our own.

The simulator must find each of them: a rule whose loss it does not notice is one that it does not
check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from rmqstore_spark.consensus.actions import Cut, MemberRole, Restart, Save, Write
from rmqstore_spark.consensus.election import NOT_A_VOTER
from rmqstore_spark.consensus.following import Following, Taken
from rmqstore_spark.consensus.ledger import MemberLedger
from rmqstore_spark.consensus.member import GroupMember
from rmqstore_spark.consensus.messages import (
    LedgerEntry,
    MemberCode,
    Push,
    PushAnswer,
    PushType,
    VoteAnswer,
)
from rmqstore_spark.consensus.pushing import Pusher
from rmqstore_spark.consensus.rejoining import Rejoining
from tests.consensus.checks import Checks
from tests.consensus.disks import Change, Disk
from tests.consensus.runs import MIXES, Run, run
from tests.consensus.simulator import Node


class CommitsEarlierTerms(GroupMember):
    """Counts entries of earlier terms (dledger issue 4)."""

    def _may_commit(self, index: int) -> bool:
        return True


class AnswersBeforeFlush(GroupMember):
    """Acknowledges what is not on disk."""

    def _pushed(self, token: object, push: Push, now: int) -> None:
        super()._pushed(token, push, now)
        self.actions.extend(reply for _, reply in self._unflushed)
        self._unflushed.clear()


class CountsItselfBeforeFlush(GroupMember):
    """A leader that takes its own entries for flushed."""

    def append(self, entries: tuple[LedgerEntry, ...], now: int) -> None:
        super().append(entries, now)
        self.ledger.note_flushed(self.ledger.changes)


class LeadsAgainInItsTerm(GroupMember):
    """Asks for votes in the term in which it led before it crashed, and lost entries."""

    def _ask_for_votes(self, now: int) -> None:
        self._may_have_led = False
        super()._ask_for_votes(now)


class VotesTwice(GroupMember):
    """Gives its vote to each who asks in a term."""

    def _voted(self, vote: Any, now: int) -> Any:
        if self.vote != self.me:
            self.vote = None
        return super()._voted(vote, now)


class VotesForShorterLedgers(GroupMember):
    """Does not look at the candidate's ledger."""

    def _reach(self) -> tuple[int, int]:
        return -1, -1


class VotesWithoutMemory(GroupMember):
    """Votes at once after it has lost its files."""

    def __init__(self, me: str, group: Any, saved: Save | None, *rest: Any, **more: Any) -> None:
        super().__init__(me, group, saved or Save(0, None, is_voter=True), *rest, **more)


class AcknowledgesBeforeItHasAsked(GroupMember):
    """Without its files, it takes entries before it knows in which terms it may have voted.

    Two runs of 6.6 million needed the rule, and their seeds play other runs now; `test_member`
    shows it in a few steps.
    """

    def _may_acknowledge(self) -> bool:
        return True


class _Deaf(Rejoining):
    def note(self, peer: str, number: int, answer: VoteAnswer) -> None:
        deaf = answer._replace(end=-1) if answer.verdict is NOT_A_VOTER else answer
        super().note(peer, number, deaf)


class TakesNewMembersForEmpty(GroupMember):
    """Takes a group for new though one that may not vote yet has acknowledged entries."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._rejoining.__class__ = _Deaf


class _Hasty(Rejoining):
    @property
    def is_new_group(self) -> bool:
        return self._all_have_told and self.may_be_new_group


class AsksOnce(GroupMember):
    """Takes a group for new when all have told once, each at its time, that they have no entry.

    No seed has found it; `test_member` shows it in a few steps.
    """

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._rejoining.__class__ = _Hasty


class AsksNobodyWhileItFollows(GroupMember):
    """Without its files, it asks the others for their terms only as long as nobody leads."""

    def _wait_for_leader(self, now: int) -> None:
        self._deadline = now + self._patience()


class FollowsOldLeaders(GroupMember):
    """Takes what a leader of an earlier term pushes."""

    def _accept_leader(self, leader: str, term: int, now: int, *, is_beat: bool) -> MemberCode:
        if term < self.term and self.role is MemberRole.FOLLOWER:
            return MemberCode.SUCCESS
        return super()._accept_leader(leader, term, now, is_beat=is_beat)


class CommitsUnmatched(GroupMember):
    """Commits what it has not compared with its leader's ledger."""

    def _take(self, push: Push) -> MemberCode:
        code = super()._take(push)
        self.commit = max(self.commit, min(push.commit, self.ledger.end))
        return code


class _Unmatched(Following):
    def _append(self, entries: tuple[LedgerEntry, ...], term: int) -> Taken:
        self.matched = True
        return super()._append(entries, term)


class AppendsUnmatched(GroupMember):
    """Appends behind what it has not compared with its leader's ledger."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._following.__class__ = _Unmatched


class _Forgetful(Following):
    def _ends_as_leader(self, term: int) -> bool:
        return False


class CutsWhatItHadBeforeARestart(GroupMember):
    """Obeys a TRUNCATE that comes after a restart, and was sent before what it has acknowledged.

    One run in 100,000 needs the rule; `test_member` shows it in a few steps.
    """

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._following.__class__ = _Forgetful


class CutsTwice(CutsWhatItHadBeforeARestart):
    """Obeys a TRUNCATE that is late, and has no guard at the commit index (dledger issue 316)."""

    def _take(self, push: Push) -> MemberCode:
        if push.type is PushType.TRUNCATE:
            self._following.matched = False
            self.commit = -1
        return super()._take(push)


class _Blind(Pusher):
    def shown(self, end: int, now: int) -> None:
        pass

    def answered(self, number: int, push: Push, answer: PushAnswer, now: int) -> None:
        if push.type is not PushType.COMMIT:
            super().answered(number, push, answer, now)


class DoesNotSeeLosses(GroupMember):
    """Does not notice that a follower has lost its data (dledger issue 61)."""

    def _become_leader(self, now: int) -> None:
        super()._become_leader(now)
        for pusher in self._pushers.values():
            pusher.__class__ = _Blind


class _Anywhere(Following):
    def _is_first(self, push: Push) -> bool:
        return True


class _Stubborn(Pusher):
    def shown(self, end: int, now: int) -> None:
        pass

    def due(self, now: int, commit: int) -> tuple[PushType, int, int] | None:
        if self._state.name == "TRUNCATE" and now >= self._late:
            self._waiting = 0
        return super().due(now, commit)


class BeginsWhereALateRequestSays(GroupMember):
    """Begins an empty ledger with what another one was to be cut to, which is repeated."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._following.__class__ = _Anywhere

    def _become_leader(self, now: int) -> None:
        super()._become_leader(now)
        for pusher in self._pushers.values():
            pusher.__class__ = _Stubborn


class BelievesLateAnswers(GroupMember):
    """Takes an answer to a comparison for that to a later one."""

    def _push_answered(
        self, peer: str, number: int, push: Push, answer: PushAnswer, now: int
    ) -> None:
        super()._push_answered(peer, 1 << 60, push, answer, now)


class _SaveIsNotFlushed(Run):
    """Votes and terms are answered before they are on disk."""

    def save(self, node: Node, action: Save) -> None:
        node.disk.saved_before = node.disk.saved  # type: ignore[attr-defined]
        super().save(node, action)

    def crash(self, node: Node, *, is_kill: bool = False) -> None:
        was_up = node.member is not None
        super().crash(node, is_kill=is_kill)
        if was_up and not is_kill and self.random() < 0.5:
            node.disk.saved = getattr(node.disk, "saved_before", node.disk.saved)


class _TermIsLost(Run):
    """A crash between delete and rename: the term's file is gone, and its copy is not read."""

    def crash(self, node: Node, *, is_kill: bool = False) -> None:
        was_up = node.member is not None
        super().crash(node, is_kill=is_kill)
        if was_up and self.random() < 0.2:
            node.disk.saved = Save(0, None, is_voter=True)


class _KeepsWhatWasCut(Disk):
    """Bytes behind a cut stay; a start finds entries again that follow what was written since."""

    def __init__(self) -> None:
        super().__init__()
        self._behind: list[LedgerEntry] = []

    def do(self, action: Change) -> None:
        before = list(self.entries)
        super().do(action)
        if isinstance(action, Cut):
            self._behind = [entry for entry in before if entry.index > action.end]
        elif isinstance(action, Restart):
            self._behind = []

    def start(self) -> MemberLedger:
        super().start()
        for entry in self._behind:
            last = self.kept[-1] if self.kept else None
            if last and entry.index == last.index + 1 and entry.term >= last.term:
                self.kept.append(entry)
        self.entries = list(self.kept)
        return self.ledger()


class _KeepsCuts(Run):
    """With such disks, and more of what it takes: leaders and members fail, after cuts too."""

    disk = _KeepsWhatWasCut

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._unsteady, self._unlucky = 1.0, 0.7
        self._mix, self._lies, self._fragile = MIXES[0], False, 0.0
        self.timing = replace(self.timing, batch=1)


class _HasNoBodies(Disk):
    """A power cut leaves headers over zeros, and a start does not look at the bodies."""

    def cut_power(self, chance: Any) -> None:
        if self.pending and isinstance(self.pending[0], Write):
            write = self.pending[0]
            empty = tuple(entry._replace(body=0) for entry in write.entries)
            self.pending[0] = write._replace(entries=empty)
        super().cut_power(chance)


class _StartsWithoutFlush(Disk):
    """What a killed process had written counts as flushed at the next start, and is not."""

    def start(self) -> MemberLedger:
        return self.ledger()


def _with_disk(kind: type[Disk]) -> Callable[[int], Checks]:
    class WithDisk(Run):
        disk = kind

    return lambda seed: WithDisk(seed).play()


def _of(member: Callable[..., GroupMember]) -> Callable[[int], Checks]:
    return lambda seed: run(seed, member)


MUTATIONS: Final[dict[str, Callable[[int], Checks]]] = {
    member.__name__: _of(member)
    for member in (
        CommitsEarlierTerms,
        AnswersBeforeFlush,
        CountsItselfBeforeFlush,
        LeadsAgainInItsTerm,
        VotesTwice,
        VotesForShorterLedgers,
        VotesWithoutMemory,
        AsksNobodyWhileItFollows,
        TakesNewMembersForEmpty,
        AsksOnce,
        AcknowledgesBeforeItHasAsked,
        FollowsOldLeaders,
        CommitsUnmatched,
        AppendsUnmatched,
        CutsTwice,
        CutsWhatItHadBeforeARestart,
        DoesNotSeeLosses,
        BeginsWhereALateRequestSays,
        BelievesLateAnswers,
    )
} | {
    "SaveIsNotFlushed": lambda seed: _SaveIsNotFlushed(seed).play(),
    "TermIsLost": lambda seed: _TermIsLost(seed).play(),
    "KeepsWhatWasCut": lambda seed: _KeepsCuts(seed).play(),
    "HasNoBodies": _with_disk(_HasNoBodies),
    "StartsWithoutFlush": _with_disk(_StartsWithoutFlush),
}
"""What runs a seed with a rule switched off, by its name."""

SEEDS: Final[dict[str, tuple[int, ...]]] = {
    "AnswersBeforeFlush": (2543,),
    "AppendsUnmatched": (962,),
    "AsksNobodyWhileItFollows": (1, 3, 7),
    "BeginsWhereALateRequestSays": (5048, 6528),
    "BelievesLateAnswers": (13, 35, 67),
    "CommitsEarlierTerms": (1224, 1488),
    "CommitsUnmatched": (4, 31),
    "CountsItselfBeforeFlush": (8152,),
    "CutsTwice": (2143, 9355, 10387),
    "DoesNotSeeLosses": (11, 44),
    "FollowsOldLeaders": (82, 943, 1147),
    "HasNoBodies": (8, 26),
    "KeepsWhatWasCut": (73753, 127935),
    "LeadsAgainInItsTerm": (116, 452),
    "SaveIsNotFlushed": (292, 511, 518),
    "StartsWithoutFlush": (35212,),
    "TakesNewMembersForEmpty": (23293, 204541),
    "TermIsLost": (898, 953, 1227),
    "VotesForShorterLedgers": (17, 24),
    "VotesTwice": (0, 2, 3),
    "VotesWithoutMemory": (74, 221),
}
"""The first seeds that find each; `python -m tests.consensus --mutations` looks for them."""
