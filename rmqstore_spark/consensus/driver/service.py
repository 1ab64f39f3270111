"""What peers and clients of the group ask a member on its port. See `DLedgerRpcService`.

A request that is wrong changes nothing: it is answered with DLedger's code for it, and logged.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.consensus.actions import Role
from rmqstore_spark.consensus.driver.driver import Driver
from rmqstore_spark.consensus.driver.group import Group
from rmqstore_spark.consensus.driver.recovery import check_entries, sound_records
from rmqstore_spark.consensus.driver.term_record import placed
from rmqstore_spark.consensus.driver.wire import (
    Ask,
    Status,
    WireAppend,
    WireAppendAnswer,
    WireGet,
    WireGetAnswer,
    WireMessage,
    WireMetadataAnswer,
    WirePush,
    WirePushAnswer,
    WireTransfer,
    answer_body,
    decode,
    encode,
    request_of,
    wire_entry,
)
from rmqstore_spark.consensus.messages import Answer, Code, Entry, Push, PushType
from rmqstore_spark.errors import FrameError, RmqStoreError, ServiceError
from rmqstore_spark.layout.dledger import BLANK_SIZE
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.connection import RemotingConnection, Request
from rmqstore_spark.remoting.peerlog import PeerLog

_MOST_PENDING: Final = 10_000
_COMMIT_SECONDS: Final = 2.5
_CATCH_UP_SECONDS: Final = 1.0
_MOST_BEHIND: Final = 1000
_SPARE_BYTES: Final = 64 << 20
"""A disk with less room takes no entries."""
_PEERS: Final = frozenset({Ask.VOTE, Ask.HEART_BEAT, Ask.PUSH})


class MemberService:
    """Handles the requests of a member's port.

    Args:
        group: the group, and who of it this is.

    Attributes:
        driver: is set before anything arrives.
    """

    driver: Driver

    def __init__(self, group: Group) -> None:
        self._group = group
        self._log = PeerLog(logging.getLogger(__name__))
        self._later: set[asyncio.Task[None]] = set()
        self._handing_over = False
        self._clients: dict[int, Callable[[bytes], Awaitable[bytes]]] = {
            Ask.METADATA: self._metadata,
            Ask.APPEND: self._append,
            Ask.GET: self._get,
            Ask.LEADERSHIP_TRANSFER: self._transfer,
        }

    # ---- a server's service --------------------------------------------------------------------

    def opened(self, connection: RemotingConnection) -> None:
        """Do nothing."""

    def closed(self, connection: RemotingConnection) -> None:
        """Do nothing."""

    def requests(self, requests: Sequence[Request]) -> None:
        """Handle requests that arrived together."""
        for request in requests:
            command = request.command
            try:
                if command.code in _PEERS:
                    self._of_peer(request)
                elif (handler := self._clients.get(command.code)) is not None:
                    task = asyncio.ensure_future(self._of_client(request, handler))
                    self._later.add(task)
                    task.add_done_callback(self._later.discard)
                else:
                    remark = f" request type {command.code} not supported"
                    code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                    request.reply(command.answer(code, remark))
            except FrameError as error:
                self._refuse(request, Status.UNEXPECTED_ARGUMENT, str(error))

    def answer(self, token: object, answer: Answer) -> None:
        """Send the member's answer to a request of a peer."""
        assert isinstance(token, tuple)
        request, asked = token
        request.reply(request.command.answer(Code.SUCCESS, body=answer_body(answer, asked)))

    async def close(self) -> None:
        """End what is being handled."""
        for task in list(self._later):
            task.cancel()
        if self._later:
            await asyncio.wait(self._later)

    # ---- peers ---------------------------------------------------------------------------------

    def _of_peer(self, request: Request) -> None:
        asked, known = request_of(request.command.code, request.command.body)
        if (wrong := self._is_for_another(asked.group, asked.remote_id)) is not None:
            self._refuse(request, *wrong)
            return
        if isinstance(known, Push) and known.entries and isinstance(asked, WirePush):
            checked, status = self._checked(known)
            if status is not None:
                peer = known.leader
                self._log.warning(
                    request.connection.peer, "%s of %s from entry %d on is refused: %s.",
                    known.type.name, escaped(peer), known.first, status.name,
                )  # fmt: skip
                ledger = self.driver.member.ledger
                request.reply(
                    request.command.answer(
                        Code.SUCCESS,
                        body=encode(
                            WirePushAnswer(
                                group=asked.group,
                                local_id=asked.local_id,
                                remote_id=asked.remote_id,
                                leader_id=asked.leader_id,
                                code=status,
                                term=self.driver.member.term,
                                index=known.first,
                                count=len(known.entries),
                                begin_index=ledger.begin,
                                end_index=ledger.end,
                            )
                        ),
                    )
                )
                return
            known = checked
        self.driver.receive((request, asked), known)

    def _checked(self, push: Push) -> tuple[Push, Status | Code | None]:
        """Return a push whose entries can be stored, or the code with which it is refused."""
        log, ledger = self.driver.log, self.driver.member.ledger
        first = push.entries[0].index
        if any(entry.index != first + at for at, entry in enumerate(push.entries)):
            return push, Code.INCONSISTENT_STATE
        if push.type is PushType.COMPARE:
            return self._compared(push), None
        known = [entry for entry in push.entries if entry.index <= ledger.end]
        if any(self._differs(entry) for entry in known if entry.index >= ledger.begin):
            return push, Code.INCONSISTENT_STATE
        new = push.entries[len(known) :]
        if push.type is PushType.TRUNCATE and ledger.term_of(first) != push.entries[0].term:
            new = push.entries
            if not self._fits(new[0]):
                return push, Code.INCONSISTENT_STATE
        elif new and first <= ledger.end + 1 and not log.has_place_for(new):
            return push, Code.INCONSISTENT_STATE
        if new and not check_entries(new):
            return push, Code.INCONSISTENT_STATE
        if new and self._is_full(sum(entry.size for entry in new)):
            return push, Status.DISK_FULL
        return push, None

    def _compared(self, push: Push) -> Push:
        """An entry of the same term with other bytes is another one."""
        entry = push.entries[0]
        if self._differs(entry):
            push = push._replace(entries=(entry._replace(term=-2),))
        return push

    def _differs(self, entry: Entry) -> bool:
        ledger = self.driver.member.ledger
        if ledger.term_of(entry.index) != entry.term:
            return False
        return self.driver.log.read(entry.index, entry.index)[0] != entry

    def _fits(self, entry: Entry) -> bool:
        segment = self.driver.log.segment_size
        return entry.position % segment + entry.size + BLANK_SIZE <= segment

    def _is_full(self, size: int) -> bool:
        room = os.statvfs(self.driver.log.data.folder)
        return room.f_bavail * room.f_frsize < size + _SPARE_BYTES

    def _is_for_another(self, group: str | None, member: str | None) -> tuple[Status, str] | None:
        if group != self._group.name:
            return Status.UNKNOWN_GROUP, f"it is for the group {group!r}"
        if member != self._group.me:
            return Status.UNKNOWN_MEMBER, f"it is for the member {member!r}"
        return None

    def _refuse(self, request: Request, status: Status, why: str) -> None:
        code, peer = request.command.code, request.connection.peer
        self._log.warning(
            peer, "Request %d of %s is refused: %s.", code, escaped(peer), escaped(why)
        )
        request.reply(request.command.answer(Code.SUCCESS, body=encode(self._status(status))))

    def _status(self, status: Status | Code) -> WireMessage:
        member = self.driver.member
        return WireMessage(
            group=self._group.name, remote_id=self._group.me, code=status,
            leader_id=member.leader, term=member.term,
        )  # fmt: skip

    # ---- clients -------------------------------------------------------------------------------

    async def _of_client(
        self, request: Request, handler: Callable[[bytes], Awaitable[bytes]]
    ) -> None:
        try:
            body = await handler(request.command.body)
        except FrameError as error:
            self._refuse(request, Status.UNEXPECTED_ARGUMENT, str(error))
        except RmqStoreError as error:
            self._refuse(request, Status.INDEX_OUT_OF_RANGE, str(error))
        except asyncio.CancelledError:
            request.drop()
            raise
        else:
            request.reply(request.command.answer(Code.SUCCESS, body=body))

    async def _metadata(self, body: bytes) -> bytes:
        asked = decode(WireMessage, body)
        if (wrong := self._is_for_another(asked.group, asked.remote_id)) is not None:
            return encode(self._status(wrong[0]))
        member = self.driver.member
        return encode(
            WireMetadataAnswer(
                group=self._group.name,
                leader_id=member.leader,
                term=member.term,
                peers=self._group.addresses,
            )
        )

    async def _append(self, body: bytes) -> bytes:
        asked = decode(WireAppend, body)
        driver = self.driver
        status = None
        if (wrong := self._is_for_another(asked.group, asked.remote_id)) is not None:
            status = wrong[0]
        elif driver.member.role is not Role.LEADER:
            status = Status.NOT_LEADER
        elif self._handing_over:
            status = Status.LEADER_TRANSFERRING
        elif driver.pending >= _MOST_PENDING:
            status = Status.LEADER_PENDING_FULL
        elif len(asked.body) < 8 or not sound_records([placed(asked.body, 0)], [0]):
            status = Status.UNEXPECTED_ARGUMENT
        elif self._is_full(len(asked.body)):
            status = Status.DISK_FULL
        if status is not None:
            return encode(self._status(status))
        entry, committed = driver.append(asked.body)
        try:
            is_committed = await asyncio.wait_for(committed, _COMMIT_SECONDS)
            code = Code.SUCCESS if is_committed else Status.TERM_CHANGED
        except asyncio.TimeoutError:
            code = Status.WAIT_QUORUM_ACK_TIMEOUT
        return encode(
            WireAppendAnswer(
                group=self._group.name,
                leader_id=driver.member.leader,
                term=entry.term,
                code=code,
                index=entry.index,
                pos=entry.position,
            )
        )

    async def _get(self, body: bytes) -> bytes:
        asked = decode(WireGet, body)
        member, index = self.driver.member, asked.begin_index
        if (wrong := self._is_for_another(asked.group, asked.remote_id)) is not None:
            return encode(self._status(wrong[0]))
        if member.role is not Role.LEADER:
            return encode(self._status(Status.NOT_LEADER))
        if index is None or not member.ledger.begin <= index <= member.ledger.end:
            return encode(self._status(Status.INDEX_OUT_OF_RANGE))
        return encode(
            WireGetAnswer(
                group=self._group.name,
                leader_id=member.leader,
                term=member.term,
                entries=[wire_entry(self.driver.log.read(index, index)[0])],
            )
        )

    # ---- handing over --------------------------------------------------------------------------

    async def _transfer(self, body: bytes) -> bytes:
        asked = decode(WireTransfer, body)
        member = self.driver.member
        if (wrong := self._is_for_another(asked.group, asked.remote_id)) is not None:
            return encode(self._status(wrong[0]))
        if asked.transfer_id == self._group.me:
            if asked.transferee_id not in member.peers:
                return encode(self._status(Status.UNKNOWN_MEMBER))
            return encode(self._status(await self._hand_over(asked.transferee_id)))
        if asked.transferee_id != self._group.me or asked.transfer_id is None:
            return encode(self._status(Status.UNEXPECTED_ARGUMENT))
        until = asyncio.get_running_loop().time() + _CATCH_UP_SECONDS
        while member.ledger.flushed < asked.take_leadership_ledger_index:
            if asyncio.get_running_loop().time() > until:
                return encode(self._status(Status.TAKE_LEADERSHIP_FAILED))
            await asyncio.sleep(0.01)
        does = self.driver.take_over(asked.transfer_id, asked.term)
        return encode(self._status(Code.SUCCESS if does else Status.TAKE_LEADERSHIP_FAILED))

    async def _hand_over(self, peer: str) -> Status | Code:
        """Ask a peer to lead; meanwhile, nothing is appended."""
        member = self.driver.member
        behind = member.behind(peer) if member.role is Role.LEADER else None
        if behind is None or behind >= _MOST_BEHIND or self._handing_over:
            return Status.TAKE_LEADERSHIP_FAILED
        ask = WireTransfer(
            group=self._group.name, local_id=self._group.me, remote_id=peer, term=member.term,
            leader_id=self._group.me, transfer_id=self._group.me, transferee_id=peer,
            take_leadership_ledger_index=member.ledger.end,
        )  # fmt: skip
        self._handing_over = True
        try:
            body = await self.driver.send(peer, Ask.LEADERSHIP_TRANSFER, encode(ask))
            code = decode(WireMessage, body).code
        except (ServiceError, FrameError):
            return Status.TAKE_LEADERSHIP_FAILED
        finally:
            self._handing_over = False
        return Code.SUCCESS if code == Code.SUCCESS else Status.TAKE_LEADERSHIP_FAILED

    async def prefer(self, leaders: Sequence[str]) -> None:
        """Hand over to one of some peers, each second in which this member leads and is another.

        Args:
            leaders: `preferredLeaderIds`.
        """
        tries = dict.fromkeys((peer for peer in leaders if peer in self.driver.member.peers), 0)
        while tries and self._group.me not in leaders:
            await asyncio.sleep(1.0)
            member = self.driver.member
            if member.role is not Role.LEADER:
                continue
            near = [peer for peer in tries if (member.behind(peer) or 0) < _MOST_BEHIND]
            if near:
                peer = min(near, key=tries.__getitem__)
                code = await self._hand_over(peer)
                tries[peer] += code is not Code.SUCCESS
