"""Asks at each address of the group who is there, until each has answered once; and each leader.

What does not fit is told when the members meet, rather than when the first entry is refused. A
member ends that does not fit to a quorum of others. And so does one that is not the one at its own
address, or where others expect it: another process has its id, and both could collect votes as the
same member. One whose leader has other messages of before the group ends, too. So does one that
has none, where others have some: if it led, it would give queue offsets again. Members of RocketMQ
say less of themselves.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Final

from rmqstore_spark.base.printable import escaped, shortened
from rmqstore_spark.consensus.driver.driver import Driver
from rmqstore_spark.consensus.driver.group import MemberStore
from rmqstore_spark.consensus.driver.wire import (
    MOST_TOLD,
    DLedgerRequest,
    Status,
    WireMessage,
    WireMetadataAnswer,
    decode,
    encode,
)
from rmqstore_spark.consensus.messages import MemberCode
from rmqstore_spark.errors import (
    FrameError,
    OptionError,
    RmqStoreError,
    ServiceError,
    UnsupportedStoreError,
)

_log = logging.getLogger(__name__)

_AGAIN_SECONDS: Final = 1.0
_TELL_SECONDS: Final = 10.0
_TELL_AGAIN_SECONDS: Final = 60.0
"""A group without a leader is logged after the one, and again after the other."""


class GroupIntroduction:
    """Meets the members of a group, this one included.

    Args:
        served: its store, if that serves clients.

    Attributes:
        process: tells this process from others; a member says it of itself.
        served: as given.
    """

    def __init__(self, served: MemberStore | None) -> None:
        self.process = secrets.token_hex(8)
        self.served = served
        self._is_warned = False
        self._others: dict[str, str] = {}  # with other messages before
        self._elsewhere: dict[str, str] = {}  # addresses of this id for others: who has them
        self._unfit: set[str] = set()  # members that do not fit to this one
        self._asked_leader = ""
        self._since = self._tell_at = 0.0  # there has been no leader; when to log it

    async def meet(self, driver: Driver) -> None:
        """Ask those who have not answered, each second.

        The driver ends if its id is another's, if it does not fit to a quorum of others, or if
        other messages were before the group.
        """
        group = driver.group
        waiting = [group.me, *(peer for peer in group.ids if peer != group.me)]
        while True:
            leader = driver.member.leader or ""
            if leader not in ("", self._asked_leader, *waiting):
                waiting.append(leader)  # its store may be another one than when it was met
            self._asked_leader = leader or self._asked_leader
            for member in list(waiting):
                found = await self._asked(driver, member)
                if found is None:
                    continue
                waiting.remove(member)
                if wrong := self._wrong(driver, member, found):
                    driver.fail(wrong)
                    return
            if wrong := await self._other_self(driver):
                driver.fail(wrong)
                return
            if wrong := self._other_messages(driver):
                driver.fail(wrong)
                return
            await self._note_leaderless(driver)
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _asked(self, driver: Driver, member: str) -> WireMetadataAnswer | None:
        group = driver.group
        asked = WireMessage(group=group.name, local_id=group.me, remote_id=member)
        try:
            body = await driver.send(member, DLedgerRequest.METADATA, encode(asked))
            return decode(WireMetadataAnswer, body)
        except (ServiceError, FrameError) as error:
            if member == group.me:
                self._warn(driver, error)
            return None

    def _wrong(
        self, driver: Driver, member: str, found: WireMetadataAnswer
    ) -> RmqStoreError | None:
        """Take note of what a member says of itself; return why this one must end."""
        group = driver.group
        if member == group.me:
            return _another(driver, found) if found.process != self.process else None
        name = f"{member} at {group.addresses[member]}"
        here = group.addresses[group.me]
        there = found.peers.get(group.me, here)
        if there != here:
            self._elsewhere[there] = name
        unfit = self._misfit(driver, found) or _refusal(driver, found)
        differs = self._differs(driver, found)
        if wrong := unfit or _other_peers(driver, found) or differs:
            _log.error("%s %s", name, wrong)
        self._others.pop(member, None)
        if differs:
            self._others[member] = f"{name} {differs}"
        self._unfit.discard(member)
        if unfit:
            self._unfit.add(member)
            if len(self._unfit) >= driver.member.quorum:
                return OptionError(f"This member does not fit into its group: {name} {unfit}")
        return None

    def _other_messages(self, driver: Driver) -> UnsupportedStoreError | None:
        """Return why this member must end because of the messages of before the group."""
        leader = driver.member.leader or ""
        if leader in self._others:
            text = f"This member cannot follow its leader: {self._others[leader]}"
            return UnsupportedStoreError(text)
        if self.served and not self.served.old.end and len(self._others) >= driver.member.quorum:
            return UnsupportedStoreError(
                f"This member lacks messages: {next(iter(self._others.values()))}"
            )
        return None

    async def _other_self(self, driver: Driver) -> OptionError | None:
        """Ask where others expect this member; return why it must end, if another is there."""
        group = driver.group
        asked = WireMessage(group=group.name, local_id=group.me, remote_id=group.me)
        for address, name in list(self._elsewhere.items()):
            try:
                body = await driver.send_to(address, DLedgerRequest.METADATA, encode(asked))
                found = decode(WireMetadataAnswer, body)
            except (ServiceError, FrameError):
                continue  # nobody may be there: this member has moved
            if found.process == self.process:
                del self._elsewhere[address]  # a way to this one
            elif found.code == MemberCode.SUCCESS:
                return _at_another_place(driver, name, address)
        return None

    def _misfit(self, driver: Driver, found: WireMetadataAnswer) -> str:
        """Return why a member and this one cannot both be right, as the end of a sentence."""
        size, heartbeat = driver.log.segment_size, driver.timing.heartbeat
        if found.segment_size not in (0, size):
            return (
                f"has mappedFileSizeCommitLog={found.segment_size}, and this member {size}. All "
                "members need the same: one refuses what the other appends."
            )
        if found.heartbeat not in (0, heartbeat):
            return (
                f"has dLegerHeartbeatInterval={found.heartbeat}, and this member {heartbeat}. All "
                "members need the same: how long a vote counts follows from it."
            )
        if self.served and found.broker_name not in ("", self.served.broker_name):
            name = escaped(shortened(found.broker_name, MOST_TOLD))
            return (
                f"has brokerName={name}, and this member {self.served.broker_name}. "
                "All members need the same: clients take others for other brokers."
            )
        return ""

    def _differs(self, driver: Driver, found: WireMetadataAnswer) -> str:
        """Return how the messages of before the group differ, as the end of a sentence."""
        if self.served is None or not found.begins_at:
            return ""
        old = self.served.old
        if not old.end:
            if old.mark or not _may_lack_old_messages(driver) or self.served.knows_ends():
                return ""
            return (
                f"has messages of before the group, up to {found.begins_at}, and this member has "
                "none: as leader, it would give queue offsets again. Move the store of this one "
                "away, copy the folder commitlog/ of that one into a new store, and start it "
                "again: the group gives it what came later."
            )
        if found.begins_at == old.end and (not old.mark or found.old_log in ("", old.mark)):
            return ""
        is_longer = found.begins_at != old.end
        what = (
            f"up to {found.begins_at}, and this member up to {old.end}"
            if is_longer
            else ("that are not those of this member")
        )
        return (
            f"has messages of before the group {what}. Members need the same in commitlog/: move "
            "the store of one of the two away, copy the folder commitlog/ of the other into a new "
            "store, and start it again: the group gives it what came later."
        )

    async def _note_leaderless(self, driver: Driver) -> None:
        """Log who is missing, if there has been no leader for long; again, but not often."""
        now = asyncio.get_running_loop().time()
        if driver.member.leader is not None:
            self._tell_at = 0.0
            return
        if not self._tell_at:
            self._since, self._tell_at = now, now + _TELL_SECONDS
        if now < self._tell_at:
            return
        self._tell_at = now + _TELL_AGAIN_SECONDS
        others = [peer for peer in driver.group.ids if peer != driver.group.me]
        found = await asyncio.gather(*(self._asked(driver, peer) for peer in others))
        silent = [peer for peer, answer in zip(others, found, strict=True) if answer is None]
        _log.warning(
            "The group has had no leader for %.0f s; %s. An election needs %d members that may "
            "vote and reach each other%s.",
            now - self._since,
            f"{' and '.join(silent)} cannot be reached from here" if silent else "all answer",
            driver.member.quorum,
            "" if driver.member.is_voter else (
                ". This one, which began without files, may vote when it has heard from enough of "
                "the others"
            ),
        )  # fmt: skip

    def _warn(self, driver: Driver, error: Exception) -> None:
        if not self._is_warned:
            group = driver.group
            _log.warning(
                "This member does not reach itself at %s, where dLegerPeers has it: %s It cannot "
                "see whether another process has its dLegerSelfId, %s.",
                group.addresses[group.me], error, group.me,
            )  # fmt: skip
        self._is_warned = True


def _another(driver: Driver, found: WireMetadataAnswer) -> OptionError:
    me = driver.group.me
    if found.code != MemberCode.SUCCESS:
        return OptionError(
            f"dLegerPeers has {me}, this member, at {driver.group.addresses[me]}, where another "
            "member answers. Correct dLegerPeers: all members need the same."
        )
    return OptionError(
        f"Another process answers at {driver.group.addresses[me]}, where dLegerPeers has {me}, "
        f"and dLegerSelfId of this one is {me} too. Give each member an id of its own, and run it "
        "where dLegerPeers says."
    )


def _at_another_place(driver: Driver, name: str, address: str) -> OptionError:
    group = driver.group
    return OptionError(
        f"{name} has another dLegerPeers: there, {group.me} is at {address}, where another process "
        f"answers, and here at {group.addresses[group.me]}. Both could be elected. Stop one of "
        "them; all members need the same dLegerPeers."
    )


def _may_lack_old_messages(driver: Driver) -> bool:
    """Return whether this member, without messages of before the group, can lack some.

    Not if the group's log begins at the first byte, or if its first entries have expired: those of
    before it went first.
    """
    log = driver.log
    return log.is_empty or (log.begin == 0 and log.data.starts[0] > 0)


def _refusal(driver: Driver, found: WireMetadataAnswer) -> str:
    """Return why a member refuses this one, as the end of a sentence."""
    if found.code == Status.UNKNOWN_GROUP:
        return f"is not in the group {driver.group.name}. All members need the same dLegerGroup."
    if found.code == Status.UNKNOWN_MEMBER:
        return "is another member there. All members need the same dLegerPeers."
    return ""


def _other_peers(driver: Driver, found: WireMetadataAnswer) -> str:
    """Return that a member has other peers, as the end of a sentence."""
    if found.peers and found.peers != driver.group.addresses:
        return "has another dLegerPeers. All members need the same."
    return ""
