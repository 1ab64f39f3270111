"""What peers and clients of the group ask a member on its port. See `DLedgerRpcService`.

A request that is wrong changes nothing: it is answered with DLedger's code for it, and logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import numpy as np

from rmqstore_spark.base.printable import escaped, shortened
from rmqstore_spark.consensus.actions import MemberRole
from rmqstore_spark.consensus.driver.checks import RefusedPush, are_records, checked, why_no_term
from rmqstore_spark.consensus.driver.driver import Driver
from rmqstore_spark.consensus.driver.group import MemberGroup, no_queue_ends
from rmqstore_spark.consensus.driver.introduction import GroupIntroduction
from rmqstore_spark.consensus.driver.proposals import placed
from rmqstore_spark.consensus.driver.protection import PeerGate, is_what_was_signed
from rmqstore_spark.consensus.driver.queue_end_pages import QueueEndPages
from rmqstore_spark.consensus.driver.wire import (
    MOST_TOLD,
    DLedgerRequest,
    Status,
    WireAppend,
    WireAppendAnswer,
    WireAskQueueEnds,
    WireGet,
    WireGetAnswer,
    WireMessage,
    WireMetadataAnswer,
    WirePushAnswer,
    WireTransfer,
    answer_body,
    decode,
    encode,
    request_of,
    wire_entry,
)
from rmqstore_spark.consensus.messages import Answer, LedgerEntry, MemberCode, Push
from rmqstore_spark.errors import FrameError, RmqStoreError, ServiceError
from rmqstore_spark.layout.dledger import ENTRY_HEADER_SIZE
from rmqstore_spark.layout.record.format import decode_records
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.connection import RemotingConnection, Request
from rmqstore_spark.remoting.peerlog import PeerLog

_MOST_PENDING: Final = 10_000
_COMMIT_SECONDS: Final = 2.5
_CATCH_UP_SECONDS: Final = 1.0
_MOST_BEHIND: Final = 1000
_NAMES: Final = {int(each): each.name for each in DLedgerRequest}
_PEERS: Final = frozenset({DLedgerRequest.VOTE, DLedgerRequest.HEART_BEAT, DLedgerRequest.PUSH})


class MemberService:
    """Handles the requests of a member's port.

    Args:
        group: the group, and who of it this is.
        takes_records: whether clients of the group may append records. A store that serves
            RocketMQ's clients gives them places in queues, which those of others would lack.
        broker: where the member's broker is, as `host:port`; "" without one.
        gate: verifies who sent a request; None: nobody does.
        contact: what this member says of itself.

    Attributes:
        driver: is set before anything arrives.
    """

    driver: Driver

    def __init__(
        self,
        group: MemberGroup,
        *,
        takes_records: bool = True,
        broker: str = "",
        gate: PeerGate | None = None,
        contact: GroupIntroduction,
    ) -> None:
        self._gate = gate
        self._contact = contact
        served = contact.served
        self._queue_end_pages = QueueEndPages(
            group.name, group.me, no_queue_ends if served is None else served.queue_ends
        )
        self._broker = broker
        self._group = group
        self._log = PeerLog(logging.getLogger(__name__))
        self._later: set[asyncio.Task[None]] = set()
        self._handing_over = False
        self._catching_up = False
        self._clients: dict[int, Callable[[bytes], Awaitable[bytes]]] = {
            DLedgerRequest.METADATA: self._metadata,
            DLedgerRequest.APPEND: self._append,
            DLedgerRequest.GET: self._get,
            DLedgerRequest.LEADERSHIP_TRANSFER: self._transfer,
            DLedgerRequest.QUEUE_ENDS: self._queue_ends,
        }
        if not takes_records:
            del self._clients[DLedgerRequest.APPEND]

    # ---- a server's service --------------------------------------------------------------------

    def opened(self, connection: RemotingConnection) -> None:
        """Do nothing."""

    def closed(self, connection: RemotingConnection) -> None:
        """Do nothing."""

    def requests(self, requests: Sequence[Request]) -> None:
        """Handle requests that arrived together."""
        for request in self._verified(requests):
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
            except _ForAnotherError as error:
                self._refuse(request, error.status, str(error))
            except FrameError as error:
                self._refuse(request, Status.UNEXPECTED_ARGUMENT, shortened(str(error), MOST_TOLD))
            except Exception as error:  # noqa: BLE001 - it must not live on after half a step
                self.driver.fail(error)
                request.drop()

    def answer(self, token: object, answer: Answer) -> None:
        """Send the member's answer to a request of a peer."""
        assert isinstance(token, tuple)
        request, asked = token
        request.reply(request.command.answer(MemberCode.SUCCESS, body=answer_body(answer, asked)))

    async def close(self) -> None:
        """End what is being handled."""
        for task in list(self._later):
            task.cancel()
        if self._later:
            await asyncio.wait(self._later)
        await self._queue_end_pages.close()

    def _verified(self, requests: Sequence[Request]) -> Sequence[Request]:
        """Return the requests of those who may ask; refuse the others."""
        if self._gate is None:
            return requests
        found = []
        for request in self._gate.admitted(requests):
            if is_what_was_signed(request.command):
                found.append(request)
            else:
                remark = "the signature is not that of a request with this code"
                request.reply(request.command.answer(ResponseCode.SYSTEM_ERROR, remark))
        verified = set(map(id, found))
        for request in requests:
            if id(request) not in verified:
                peer = request.connection.peer
                self._log.warning(
                    peer, "%s may not ask this member: with dLegerAclEnable, requests need the "
                    "signature of an account of aclPath with admin: true. Is it another member? "
                    "Give it aclCredentialsPath.", escaped(peer),
                )  # fmt: skip
        return found

    # ---- peers ---------------------------------------------------------------------------------

    def _of_peer(self, request: Request) -> None:
        asked, known = request_of(request.command.code, request.command.body)
        self._require_for_this(asked.group, asked.remote_id)
        if asked.local_id == self._group.me:
            why = "it says that it is this member; each needs a dLegerSelfId of its own"
            self._refuse(request, MemberCode.UNEXPECTED_MEMBER, why)
            return
        if why_not := why_no_term(known.term):
            self._refuse(request, Status.UNEXPECTED_ARGUMENT, why_not)
            return
        if isinstance(known, Push) and known.entries:
            try:
                known = checked(known, self.driver.log, self.driver.member.ledger)
            except RefusedPush as refused:
                why = f"{known.type.name} from entry {known.first} on: {refused}"
                self._refuse(request, refused.status, why)
                return
        self.driver.receive((request, asked), known)

    def _require_for_this(self, group: str | None, member: str | None) -> None:
        if group != self._group.name:
            why = f"it is for the group {_told(group)}; all members need the same dLegerGroup"
            raise _ForAnotherError(Status.UNKNOWN_GROUP, why)
        if member != self._group.me:
            why = f"it is for the member {_told(member)}; all members need the same dLegerPeers"
            raise _ForAnotherError(Status.UNKNOWN_MEMBER, why)

    def _refuse(self, request: Request, status: Status | MemberCode, why: str) -> None:
        code, peer = request.command.code, request.connection.peer
        # Its own text for each code and status: one must not keep another out of the log.
        text = f"{_NAMES[code]} of %s is refused ({status.name}): %s."
        self._log.warning(peer, text, escaped(peer), shortened(escaped(why), 2 * MOST_TOLD))
        body = self._push_status(status) if code == DLedgerRequest.PUSH else self._status(status)
        request.reply(request.command.answer(MemberCode.SUCCESS, body=encode(body)))

    def _push_status(self, status: Status | MemberCode) -> WirePushAnswer:
        member = self.driver.member
        is_empty = member.ledger.is_empty
        return WirePushAnswer(
            group=self._group.name,
            remote_id=self._group.me,
            code=status,
            leader_id=member.leader,
            term=member.term,
            begin_index=-1 if is_empty else member.ledger.begin,
            end_index=-1 if is_empty else member.ledger.end,
        )

    def _status(self, status: Status | MemberCode) -> WireMessage:
        member = self.driver.member
        return WireMessage(
            group=self._group.name, remote_id=self._group.me, code=status,
            leader_id=member.leader, term=member.term,
        )  # fmt: skip

    # ---- clients -------------------------------------------------------------------------------

    async def _of_client(
        self, request: Request, handler: Callable[[bytes], Awaitable[bytes]]
    ) -> None:
        if not request.connection.is_open:  # who asked has gone before its turn
            request.drop()
            return
        try:
            body = await handler(request.command.body)
        except _ForAnotherError as error:
            self._refuse(request, error.status, str(error))
        except FrameError as error:
            self._refuse(request, Status.UNEXPECTED_ARGUMENT, shortened(str(error), MOST_TOLD))
        except RmqStoreError as error:
            self._refuse(request, Status.INDEX_OUT_OF_RANGE, str(error))
        except asyncio.CancelledError:
            request.drop()
            raise
        else:
            request.reply(request.command.answer(MemberCode.SUCCESS, body=body))

    async def _metadata(self, body: bytes) -> bytes:
        asked = decode(WireMessage, body)
        self._require_for_this(asked.group, asked.remote_id)
        member, served = self.driver.member, self._contact.served
        return encode(
            WireMetadataAnswer(
                group=self._group.name,
                leader_id=member.leader,
                term=member.term,
                peers=self._group.addresses,
                broker_addr=self._broker,
                process=self._contact.process,
                segment_size=self.driver.log.segment_size,
                heartbeat=self.driver.timing.heartbeat,
                begins_at=served.old.told_end if served else 0,
                old_log=served.old.mark if served else "",
                broker_name=served.broker_name if served else "",
            )
        )

    async def _queue_ends(self, body: bytes) -> bytes:
        asked = decode(WireAskQueueEnds, body)
        self._require_for_this(asked.group, asked.remote_id)
        return await self._queue_end_pages.behind((asked.topic, asked.queue_id))

    async def _append(self, body: bytes) -> bytes:
        asked = decode(WireAppend, body)
        driver = self.driver
        status = None
        self._require_for_this(asked.group, asked.remote_id)
        if driver.member.role is not MemberRole.LEADER:
            status = Status.NOT_LEADER
        elif self._handing_over:
            status = Status.LEADER_TRANSFERRING
        elif driver.pending >= _MOST_PENDING:
            status = Status.LEADER_PENDING_FULL
        elif not _is_record(asked.body):
            status = Status.UNEXPECTED_ARGUMENT
        elif not driver.log.room.has_now(len(asked.body)):
            status = Status.DISK_FULL
        elif _has_zeros(asked.body):
            raise FrameError("topic or properties of the record hold a zero byte")
        if status is not None:
            return encode(self._status(status))
        entry, committed = driver.append(asked.body)
        try:
            is_committed = await asyncio.wait_for(committed, _COMMIT_SECONDS)
            code = MemberCode.SUCCESS if is_committed else Status.TERM_CHANGED
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
        self._require_for_this(asked.group, asked.remote_id)
        if member.role is not MemberRole.LEADER:
            return encode(self._status(Status.NOT_LEADER))
        if index is None or not member.ledger.begin <= index <= member.commit:
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
        self._require_for_this(asked.group, asked.remote_id)
        if asked.transfer_id == self._group.me:
            if asked.transferee_id not in member.peers:
                return encode(self._status(Status.UNKNOWN_MEMBER))
            return encode(self._status(await self._hand_over(asked.transferee_id)))
        if asked.transferee_id != self._group.me or asked.transfer_id is None:
            return encode(self._status(Status.UNEXPECTED_ARGUMENT))
        return encode(self._status(await self._take_over(asked, asked.transfer_id)))

    async def _take_over(self, asked: WireTransfer, leader: str) -> Status | MemberCode:
        """Lead, as the leader wants, when this member has all of its entries.

        A leader asks one member at a time, and none that is far behind. Nobody else may make this
        one wait for entries.
        """
        member, end = self.driver.member, asked.take_leadership_ledger_index
        if leader != member.leader:
            return MemberCode.INCONSISTENT_LEADER
        if asked.term != member.term:
            return Status.INCONSISTENT_TERM
        if not self._may_lead(end) or end - member.ledger.end >= _MOST_BEHIND:
            return Status.FALL_BEHIND_TOO_MUCH
        if self._catching_up:
            return Status.TAKE_LEADERSHIP_FAILED
        self._catching_up = True
        try:
            if not await self._has_flushed(end):
                return Status.TAKE_LEADERSHIP_FAILED
        finally:
            self._catching_up = False
        does = self.driver.take_over(leader, asked.term)
        return MemberCode.SUCCESS if does else Status.TAKE_LEADERSHIP_FAILED

    def _may_lead(self, end: int) -> bool:
        """Return whether this member knows where queues end.

        Args:
            end: index of the leader's last entry; -1 for none, as in a new group of RocketMQ's.
        """
        served, log = self._contact.served, self.driver.log
        if served is None or served.knows_ends():
            return True
        if log.is_empty:
            return end < 0
        return log.begin == 0 and log.data.starts[0] == 0  # nothing was before

    async def _has_flushed(self, index: int) -> bool:
        """Wait for an entry to be on disk; return whether it is, after a while."""
        now = asyncio.get_running_loop().time
        until = now() + _CATCH_UP_SECONDS
        while self.driver.member.ledger.flushed < index:
            if now() > until:
                return False
            await asyncio.sleep(0.01)
        return True

    async def _hand_over(self, peer: str) -> Status | MemberCode:
        """Ask a peer to lead; meanwhile, nothing is appended."""
        member = self.driver.member
        behind = member.behind(peer) if member.role is MemberRole.LEADER else None
        if behind is None or behind >= _MOST_BEHIND or self._handing_over:
            return Status.TAKE_LEADERSHIP_FAILED
        ask = WireTransfer(
            group=self._group.name, local_id=self._group.me, remote_id=peer, term=member.term,
            leader_id=self._group.me, transfer_id=self._group.me, transferee_id=peer,
            take_leadership_ledger_index=member.ledger.end,
        )  # fmt: skip
        self._handing_over = True
        self.driver.hold()
        try:
            body = await self.driver.send(peer, DLedgerRequest.LEADERSHIP_TRANSFER, encode(ask))
            code = decode(WireMessage, body).code
        except (ServiceError, FrameError):
            return Status.TAKE_LEADERSHIP_FAILED
        finally:
            self._handing_over = False
            self.driver.release()
        return MemberCode.SUCCESS if code == MemberCode.SUCCESS else Status.TAKE_LEADERSHIP_FAILED

    async def prefer(self, leaders: Sequence[str]) -> None:
        """Hand over to one of some peers, each second in which this member leads and is another.

        Args:
            leaders: `preferredLeaderIds`.
        """
        tries = dict.fromkeys((peer for peer in leaders if peer in self.driver.member.peers), 0)
        while tries and self._group.me not in leaders:
            await asyncio.sleep(1.0)
            member = self.driver.member
            if member.role is not MemberRole.LEADER:
                continue
            near = [peer for peer in tries if (member.behind(peer) or 0) < _MOST_BEHIND]
            if near:
                peer = min(near, key=tries.__getitem__)
                code = await self._hand_over(peer)
                tries[peer] += code is not MemberCode.SUCCESS


class _ForAnotherError(Exception):
    """A request is for another group, or another member: it is answered with a status."""

    def __init__(self, status: Status, why: str) -> None:
        super().__init__(why)
        self.status = status


def _told(name: str | None) -> str:
    return "of no name" if name is None else shortened(repr(name[:MOST_TOLD]), MOST_TOLD)


def _has_zeros(body: bytes) -> bool:
    """Whether a start would take parts of a record for what has not reached the disk."""
    size = np.array([len(body)], np.int32)
    record = decode_records(np.frombuffer(body, np.uint8), np.zeros(1, np.int64), size)
    return any(len(texts.with_zeros()) for texts in (record.topic, record.properties))


def _is_record(body: bytes) -> bool:
    size = ENTRY_HEADER_SIZE + len(body)
    return are_records((LedgerEntry(0, 0, 0, size, placed(body, ENTRY_HEADER_SIZE)),))
