"""The bodies of requests and answers between members: JSON, as DLedger 0.3.1.2 reads and writes it.

Each is a class of `io.openmessaging.storage.dledger.protocol`. Entries are base64 in JSON. Keys
that are not known are skipped, and what is missing has DLedger's default.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Annotated, Any, ClassVar, Final, TypeVar

import msgspec

from rmqstore_spark.base.printable import shortened
from rmqstore_spark.consensus.messages import (
    MOST_TERM,
    Answer,
    HeartbeatAnswer,
    LeaderHeartbeat,
    LedgerEntry,
    MemberCode,
    Push,
    PushAnswer,
    PushType,
    Request,
    Vote,
    VoteAnswer,
    VoteVerdict,
)
from rmqstore_spark.errors import FrameError
from rmqstore_spark.layout.dledger import ENTRY_HEADER_SIZE, ENTRY_MAGIC

MOST_TOLD: Final = 200
"""Characters of what a peer says that an error or a line of the log repeats."""


class DLedgerRequest(IntEnum):
    """`DLedgerRequestCode`."""

    METADATA = 50000
    APPEND = 50001
    GET = 50002
    VOTE = 51001
    HEART_BEAT = 51002
    PULL = 51003
    PUSH = 51004
    LEADERSHIP_TRANSFER = 51005
    QUEUE_ENDS = 51921  # only ours have it


class Status(IntEnum):
    """`DLedgerResponseCode`: what the driver itself answers, beside `MemberCode`."""

    UNKNOWN_GROUP = 400
    UNKNOWN_MEMBER = 401
    NOT_LEADER = 404
    INCONSISTENT_TERM = 407
    INDEX_OUT_OF_RANGE = 410
    UNEXPECTED_ARGUMENT = 411
    DISK_FULL = 415
    FALL_BEHIND_TOO_MUCH = 417
    TAKE_LEADERSHIP_FAILED = 418
    TERM_CHANGED = 501
    WAIT_QUORUM_ACK_TIMEOUT = 502
    LEADER_PENDING_FULL = 503
    LEADER_TRANSFERRING = 506


def code_words(code: int) -> str:
    """Return a code of DLedger with what it means, for the log."""
    for codes in (Status, MemberCode):
        with suppress(ValueError):
            return f"{code} ({codes(code).name.lower().replace('_', ' ')})"
    return str(code)


_Int = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]
_Position = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Text = Annotated[str, msgspec.Meta(max_length=300)]


class _Message(msgspec.Struct, rename="camel", kw_only=True):
    """`RequestOrResponse`; `java` is the name of the class, for errors.

    Only those with entries may be larger than a mebibyte.
    """

    java: ClassVar[str] = "RequestOrResponse"
    has_entries: ClassVar[bool] = False
    group: str | None = None
    remote_id: str | None = None
    local_id: str | None = None
    code: _Int = 200
    leader_id: str | None = None
    term: int = -1


class WireEntry(msgspec.Struct, rename="camel", kw_only=True):
    """`DLedgerEntry`."""

    magic: int = 0
    size: int = 0
    index: int = -1
    term: int = -1
    pos: int = 0
    channel: int = 0
    chain_crc: int = 0
    body_crc: int = 0
    body: bytes = b""


class WireVote(_Message, kw_only=True):
    """`VoteRequest`."""

    java: ClassVar[str] = "VoteRequest"
    ledger_end_index: int = -1
    ledger_end_term: int = -1


class WireVoteAnswer(_Message, kw_only=True):
    """`VoteResponse`; RocketMQ's members say nothing of their ledgers, and ignore that."""

    java: ClassVar[str] = "VoteResponse"
    vote_result: str = "UNKNOWN"
    ledger_end_index: int = -1


class WirePush(_Message, kw_only=True):
    """`PushEntryRequest`; what is derived is written only.

    Attributes:
        begin_index: of the first entry that the leader has. RocketMQ does not say it, and ignores
            it.
    """

    java: ClassVar[str] = "PushEntryRequest"
    has_entries: ClassVar[bool] = True
    type: str = PushType.APPEND.name
    commit_index: int = -1
    begin_index: int = -1
    entry: WireEntry | None = None
    batch_entry: list[WireEntry] = []
    batch: bool = False
    count: int = 0
    first_entry_index: int = -1
    last_entry_index: int = -1
    total_size: int = 0


class _SentPush(WirePush, kw_only=True):
    """The same as it is sent: its entries are encoded once for all peers."""

    entry: msgspec.Raw  # type: ignore[assignment]
    batch_entry: msgspec.Raw  # type: ignore[assignment]


class WirePushAnswer(_Message, kw_only=True):
    """`PushEntryResponse`."""

    java: ClassVar[str] = "PushEntryResponse"
    index: int | None = None
    begin_index: int = 0
    end_index: int = 0
    count: int = 0


class WireTransfer(_Message, kw_only=True):
    """`LeadershipTransferRequest`."""

    java: ClassVar[str] = "LeadershipTransferRequest"
    transfer_id: str | None = None
    transferee_id: str | None = None
    take_leadership_ledger_index: int = -1


class WireAppend(_Message, kw_only=True):
    """`AppendEntryRequest`."""

    java: ClassVar[str] = "AppendEntryRequest"
    has_entries: ClassVar[bool] = True
    body: bytes = b""


class WireAppendAnswer(_Message, kw_only=True):
    """`AppendEntryResponse`."""

    index: int = -1
    pos: int = -1


class WireGet(_Message, kw_only=True):
    """`GetEntriesRequest`."""

    java: ClassVar[str] = "GetEntriesRequest"
    begin_index: int | None = None


class WireGetAnswer(_Message, kw_only=True):
    """`GetEntriesResponse`."""

    entries: list[WireEntry] = []


class WireMetadataAnswer(_Message, kw_only=True):
    """`MetadataResponse`, and what only ours say.

    Attributes:
        broker_addr: where the member's broker is; "" without one.
        process: tells the member's process from others.
        segment_size: bytes of a segment; 0: not known.
        heartbeat: milliseconds between a leader's heartbeats; 0: not known.
        begins_at: where its log begins behind an older one of its store; 0: it has none, or all
            messages of that one have expired.
        old_log: tells that one from others; "" if that is not known.
        broker_name: `brokerName`; "" without a broker, or if that is not known.
    """

    java: ClassVar[str] = "MetadataResponse"
    peers: dict[str, str] = {}
    broker_addr: _Text = ""
    process: str = ""
    segment_size: _Position = 0
    heartbeat: _Position = 0
    begins_at: _Position = 0
    old_log: str = ""
    broker_name: str = ""


class WireAskQueueEnds(_Message, kw_only=True):
    """Asks where the queues of a member's store end, of those behind one, by topic and queueId.

    Attributes:
        topic, queue_id: the last queue of the page before; as they are, for the first page.
    """

    java: ClassVar[str] = "request for queue ends"
    topic: _Text = ""
    queue_id: _Int = -1


class WireQueueEnds(_Message, kw_only=True):
    """A page of where the queues of a member's store end.

    Attributes:
        known: whether all pages have all of them; otherwise it began without queues, too.
        ends: by topic, and by queueId as text.
        log_end: position behind which the log may have messages that are not counted.
        is_last: whether no page follows.
    """

    java: ClassVar[str] = "answer about queue ends"
    known: bool = False
    ends: dict[str, dict[str, _Position]] = {}
    log_end: _Position = 0
    is_last: bool = False


class WireMessage(_Message, kw_only=True):
    """What has no fields of its own: heartbeats, metadata requests, refusals."""


encode: Final = msgspec.json.Encoder().encode
_M = TypeVar("_M", bound=_Message)
_MOST_INDEX: Final = 1 << 56
"""An index unit has 32 bytes. A peer that lies must leave room for the entries that follow."""
_MOST_POSITION: Final = 1 << 62
_SMALL: Final = 1 << 20
"""Bytes of a body that takes less than 64 MiB of memory, whatever is in it."""
_ENTRY: Final = 120
"""Bytes that each entry takes in JSON, at least: base64 of the shortest record alone is longer."""
_READERS: Final[dict[type[_Message], msgspec.json.Decoder[Any]]] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (
        *(WireMessage, WireVote, WireVoteAnswer, WirePush, WirePushAnswer, WireTransfer),
        *(WireAppend, WireGet, WireMetadataAnswer),
        *(WireAskQueueEnds, WireQueueEnds),
    )
}
_PUSHES: Final = {kind.name: kind for kind in PushType}
_VERDICTS: Final = {verdict.name: verdict for verdict in VoteVerdict}
_CODES: Final = {int(code): code for code in MemberCode}


def decode(kind: type[_M], body: bytes) -> _M:
    """Read a body.

    Raises:
        FrameError: it is not of this kind.
    """
    if len(body) > _SMALL:
        if not kind.has_entries:
            raise FrameError(f"a body of {len(body)} bytes is larger than any {kind.java}")
        if body.count(b"{") > len(body) // _ENTRY:
            # An object of two bytes takes 150 of memory; neither base64 nor what ids may have
            # has "{".
            raise FrameError(f"a body of {len(body)} bytes has more entries than can have a record")
    try:
        found: _M = _READERS[kind].decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"a body of {len(body)} bytes is not {kind.java}: {error}") from None
    if not -1 <= found.term <= MOST_TERM:
        raise FrameError(f"a term is {shortened(str(found.term), MOST_TOLD)}")
    return found


def request_of(command: int, body: bytes) -> tuple[WireMessage | WireVote | WirePush, Request]:
    """Read what a peer asks of a member: a vote, a heartbeat or a push.

    Raises:
        FrameError: it is none.
    """
    if command == DLedgerRequest.VOTE:
        vote = decode(WireVote, body)
        return vote, Vote(
            vote.term, vote.leader_id or "", vote.ledger_end_index, vote.ledger_end_term
        )
    if command == DLedgerRequest.HEART_BEAT:
        beat = decode(WireMessage, body)
        return beat, LeaderHeartbeat(beat.term, beat.leader_id or "")
    push = decode(WirePush, body)
    kind = _PUSHES.get(push.type)
    if kind is None:
        raise FrameError(f"a push is of type {shortened(push.type, MOST_TOLD)!r}")
    if kind is PushType.COMMIT:
        return push, Push(kind, push.term, push.leader_id or "", -1, -1, push.commit_index)
    found = push.batch_entry or ([push.entry] if push.entry else [])
    if not found or (kind is not PushType.APPEND and len(found) > 1):
        raise FrameError(f"a push of type {kind.name} has {len(found)} entries")
    entries = tuple(map(_entry, found))
    return push, Push(
        kind, push.term, push.leader_id or "",
        entries[0].index, entries[-1].index, push.commit_index, push.begin_index, entries,
    )  # fmt: skip


def _entry(found: WireEntry) -> LedgerEntry:
    if found.magic != ENTRY_MAGIC:
        raise FrameError(
            f"entry {found.index} has the magic {found.magic}, not {ENTRY_MAGIC} as entries do"
        )
    size = ENTRY_HEADER_SIZE + len(found.body)
    if found.size != size:
        raise FrameError(
            f"entry {found.index} says that it has {found.size} bytes, and has {size} with its "
            "header"
        )
    is_known = 0 <= found.index < _MOST_INDEX and 0 <= found.pos < _MOST_POSITION
    if not (is_known and 0 <= found.term <= MOST_TERM):
        raise FrameError(f"an entry is {found.index} of term {found.term} at {found.pos}")
    return LedgerEntry(found.index, found.term, found.pos, found.size, found.body)


def wire_entry(entry: LedgerEntry) -> WireEntry:
    """Return an entry as it is sent."""
    assert isinstance(entry.body, bytes)
    return WireEntry(
        magic=ENTRY_MAGIC, size=entry.size, index=entry.index, term=entry.term,
        pos=entry.position, body=entry.body,
    )  # fmt: skip


_NO_ENTRY: Final = msgspec.Raw(b"null")
_NO_ENTRIES: Final = msgspec.Raw(b"[]")


def encoded_entries(entries: Sequence[LedgerEntry]) -> msgspec.Raw:
    """Return entries as a push has them: one alone, or a list."""
    sent = [wire_entry(entry) for entry in entries]
    return msgspec.Raw(encode(sent[0] if len(sent) == 1 else sent))


def request_body(
    request: Request, group: str, me: str, peer: str, entries: msgspec.Raw | None = None
) -> tuple[DLedgerRequest, bytes]:
    """Return code and body of what this member asks a peer.

    Args:
        request: what it asks.
        group, me, peer: the names.
        entries: those of a push, as `encoded_entries` returns them; None: they are encoded here.
    """
    ids: dict[str, Any] = {"group": group, "local_id": me, "remote_id": peer, "term": request.term}
    if isinstance(request, Vote):
        vote = WireVote(
            **ids, leader_id=request.candidate,
            ledger_end_index=request.end_index, ledger_end_term=request.end_term,
        )  # fmt: skip
        return DLedgerRequest.VOTE, encode(vote)
    if isinstance(request, LeaderHeartbeat):
        return DLedgerRequest.HEART_BEAT, encode(WireMessage(**ids, leader_id=request.leader))
    count = len(request.entries)
    is_batch = count > 1
    if entries is None:
        entries = encoded_entries(request.entries)
    push = _SentPush(
        **ids, leader_id=request.leader, type=request.type.name, commit_index=request.commit,
        begin_index=request.begin,
        entry=entries if count == 1 else _NO_ENTRY,
        batch_entry=entries if is_batch else _NO_ENTRIES,
        batch=is_batch, count=count, first_entry_index=request.first,
        last_entry_index=request.last,
        total_size=sum(entry.size for entry in request.entries) if is_batch else 0,
    )  # fmt: skip
    return DLedgerRequest.PUSH, encode(push)


def answer_body(answer: Answer, asked: _Message) -> bytes:
    """Return the body of an answer to a request."""
    ids: dict[str, Any] = {
        "group": asked.group, "local_id": asked.local_id, "remote_id": asked.remote_id,
        "leader_id": asked.leader_id, "term": answer.term,
    }  # fmt: skip
    if isinstance(answer, VoteAnswer):
        verdict, end = answer.verdict.name, answer.end
        return encode(WireVoteAnswer(**ids, vote_result=verdict, ledger_end_index=end))
    if isinstance(answer, HeartbeatAnswer):
        return encode(WireMessage(code=answer.code, term=answer.term))
    is_empty = answer.end < answer.begin
    has_entries = isinstance(asked, WirePush) and answer.type is not PushType.COMMIT
    return encode(
        WirePushAnswer(
            **ids,
            code=answer.code,
            begin_index=-1 if is_empty else answer.begin,
            end_index=-1 if is_empty else answer.end,
            index=asked.first_entry_index if has_entries and isinstance(asked, WirePush) else None,
            count=asked.count if has_entries and isinstance(asked, WirePush) else 0,
        )
    )


def answer_of(request: Request, body: bytes) -> Answer | None:
    """Read the answer to a request; None if it says nothing that a member could use.

    Raises:
        FrameError: it is none.
    """
    if isinstance(request, Vote):
        vote = decode(WireVoteAnswer, body)
        verdict = _VERDICTS.get(vote.vote_result)
        return (
            None
            if verdict is None or vote.code != MemberCode.SUCCESS
            else VoteAnswer(vote.term, verdict, vote.ledger_end_index)
        )
    if isinstance(request, LeaderHeartbeat):
        beat = decode(WireMessage, body)
        beat_code = _CODES.get(beat.code)
        return None if beat_code is None else HeartbeatAnswer(beat_code, beat.term)
    push = decode(WirePushAnswer, body)
    code = _CODES.get(push.code)
    if code is None:
        return None
    return PushAnswer(request.type, code, push.term, request.last, push.begin_index, push.end_index)
