"""Asks at each address of the group who is there, until each has answered once.

What does not fit is told when the members meet, rather than when the first entry is refused. A
member ends that does not fit to a quorum of others. And so does one that is not the one at its own
address, or where others expect it: another process has its id, and both could collect votes as the
same member. Members of RocketMQ say less of themselves.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Final

from rmqstore_spark.consensus.driver.driver import Driver
from rmqstore_spark.consensus.driver.group import OldLog
from rmqstore_spark.consensus.driver.wire import (
    DLedgerRequest,
    Status,
    WireMessage,
    WireMetadataAnswer,
    decode,
    encode,
)
from rmqstore_spark.errors import (
    FrameError,
    OptionError,
    RmqStoreError,
    ServiceError,
    UnsupportedStoreError,
)

_log = logging.getLogger(__name__)

_AGAIN_SECONDS: Final = 1.0


class GroupIntroduction:
    """Meets the members of a group, this one included.

    Args:
        old: what its store had before.

    Attributes:
        process: tells this process from others; a member says it of itself.
        old: as given.
    """

    def __init__(self, old: OldLog) -> None:
        self.process = secrets.token_hex(8)
        self.old = old
        self._is_warned = False
        self._others: dict[str, str] = {}  # with other messages before
        self._elsewhere: dict[str, str] = {}  # addresses of this id for others: who has them
        self._unfit = 0  # members that do not fit to this one

    async def meet(self, driver: Driver) -> None:
        """Ask those who have not answered, each second.

        The driver ends if its id is another's, if it does not fit to a quorum of others, or if one
        that leads had other messages before.
        """
        group = driver.group
        waiting = [group.me, *(peer for peer in group.ids if peer != group.me)]
        while waiting or self._others or self._elsewhere:
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
            leader = driver.member.leader or ""
            if leader in self._others:
                text = f"This member cannot follow its leader: {self._others[leader]}"
                driver.fail(UnsupportedStoreError(text))
                return
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
            return _another(driver) if found.process != self.process else None
        name = f"{member} at {group.addresses[member]}"
        here = group.addresses[group.me]
        there = found.peers.get(group.me, here)
        if there != here:
            self._elsewhere[there] = name
        unfit, differs = _unfit(driver, found), self._differs(found)
        if wrong := unfit or _stranger(driver, found) or differs:
            _log.error("%s %s", name, wrong)
        if differs:
            self._others[member] = f"{name} {differs}"
        if unfit:
            self._unfit += 1
            if self._unfit >= driver.member.quorum:
                return OptionError(f"This member does not fit into its group: {name} {unfit}")
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
            if found.process != self.process:
                return _at_another_place(driver, name, address)
            del self._elsewhere[address]  # a way to this one
        return None

    def _differs(self, found: WireMetadataAnswer) -> str:
        """Return how the messages of before the group differ, as the end of a sentence."""
        old = self.old
        if not old.end or not found.begins_at:
            return ""
        if found.begins_at == old.end and (not old.mark or found.old_log in ("", old.mark)):
            return ""
        is_longer = found.begins_at != old.end
        what = (
            f"up to {found.begins_at}, and this member up to {old.end}"
            if is_longer
            else ("that are not those of this member")
        )
        return (
            f"has messages of before the group {what}. Members need the same in commitlog/, or "
            "none: copy the store of one to the others, and start the group again."
        )

    def _warn(self, driver: Driver, error: Exception) -> None:
        if not self._is_warned:
            group = driver.group
            _log.warning(
                "This member does not reach itself at %s, where dLegerPeers has it: %s It cannot "
                "see whether another process has its dLegerSelfId, %s.",
                group.addresses[group.me], error, group.me,
            )  # fmt: skip
        self._is_warned = True


def _another(driver: Driver) -> OptionError:
    me = driver.group.me
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


def _unfit(driver: Driver, found: WireMetadataAnswer) -> str:
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
    return ""


def _stranger(driver: Driver, found: WireMetadataAnswer) -> str:
    """Return why a member is not in the group of this one, as the end of a sentence."""
    group = driver.group
    if found.code == Status.UNKNOWN_GROUP:
        return f"is not in the group {group.name}. All members need the same dLegerGroup."
    if found.code == Status.UNKNOWN_MEMBER:
        return "is another member there. All members need the same dLegerPeers."
    if found.peers and found.peers != group.addresses:
        return "has another dLegerPeers. All members need the same."
    return ""
