"""The table of the requests of Spark and the command: one row for each code.

docs/features.md has the table, too: `python -m tools.docs` writes it there. RocketMQ's codes are in
`broker.faces.remoting.table`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from rmqstore_spark.base.types import CommitRequest
from rmqstore_spark.broker.acl.accounts import Right, need_of_group
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.server.actions import StoreActions
from rmqstore_spark.server.callers import (
    ADMIN,
    ANYONE,
    READS_ALL,
    WRITES,
    Caller,
    Needs,
    of_topics,
)
from rmqstore_spark.wire.codec import MessageError, decode
from rmqstore_spark.wire.messages import (
    AbortRequest,
    ChecksRequest,
    CommitOffsetsRequest,
    DemoteRequest,
    Done,
    EndRequest,
    ExpireRequest,
    OffsetsRequest,
    PromoteRequest,
    QueryRequest,
    StreamCommand,
    TopicRequest,
)
from rmqstore_spark.wire.protocol import ILLEGAL, MAX_REQUEST, SMALL_REQUEST, Code
from rmqstore_spark.wire.reading import OpenRequest, PathRequest, RangesRequest, WalkRequest

_Handler: TypeAlias = Callable[[StoreActions, Any, Caller], object]


class RowRights(NamedTuple):
    """What a request needs.

    Attributes:
        text: for documentation.
        needs: the needs, or what returns those of a request.
    """

    text: str
    needs: Needs | Callable[[Any], Needs]


class ClientRow(NamedTuple):
    """What is true of a code.

    Attributes:
        code: the code.
        asks: what a request with it asks for, for documentation.
        kind: the class of its body; None if that is bytes.
        rule: what the client's account needs; None for what the row of the stream says.
        handle: does what is asked; None for streams and logins, which `server.requests` handles.
        at_once: how many of these may run at a time, since each can take tens of megabytes; None
            for no limit of their own.
    """

    code: Code
    asks: str
    kind: type[Any] | None
    rule: RowRights | None
    handle: _Handler | None = None
    at_once: int | None = None

    def read(self, body: bytes) -> Any:
        """Decode the body of a request.

        Raises:
            RefusedError: it is not what the code needs.
        """
        assert self.kind is not None, f"{self.code.text} has no message"  # noqa: S101 - as told
        try:
            return decode(self.kind, body, most=MAX_REQUEST.get(self.code, SMALL_REQUEST))
        except MessageError as error:
            text = f"The request {self.code.text} is invalid: {error}."
            raise RefusedError(text, ILLEGAL) from None

    def needs_of(self, request: Any) -> Needs:
        """Return what a request needs."""
        if self.rule is None:
            return ANYONE
        needs = self.rule.needs
        return needs if isinstance(needs, Needs) else needs(request)


def _does(method: Callable[[StoreActions, Any], object]) -> _Handler:
    """Return a handler for which it does not matter who asks."""
    return lambda actions, request, _: method(actions, request)


def _sees(request: OffsetsRequest) -> Needs:
    if request.topics is None:
        return Needs(everywhere=Right.ANY)
    return of_topics(request.topics, Right.ANY)


def _moves(request: CommitOffsetsRequest) -> Needs:
    topics = of_topics(request.offsets, Right.SUB).rights
    return Needs(rights=(need_of_group(request.group), *topics))


_NOBODY: Final = RowRights("nothing", ANYONE)
_ANYONE: Final = RowRights("to exist", ANYONE)
_ADMIN: Final = RowRights("to be an administrator's", ADMIN)
_READS_ALL: Final = RowRights("SUB of all topics", READS_ALL)
_WRITES: Final = RowRights("PUB of each topic", WRITES)
_ENDS: Final = RowRights(
    "PUB of all topics: half messages of a group can have any",
    Needs(everywhere=Right.PUB, uses=Right.PUB),
)
_OPENS: Final = RowRights(
    "PUB of the topics", lambda request: of_topics(request.topics or (), Right.PUB)
)
_SEES_ALL: Final = RowRights("PUB or SUB of all topics", Needs(everywhere=Right.ANY))
_SEES: Final = RowRights("PUB or SUB of the topics", _sees)
_MOVES: Final = RowRights("SUB of the group, and of the topics", _moves)
_QUERIES: Final = RowRights(
    "SUB of the topic", lambda request: of_topics((request.topic,), Right.SUB)
)

# fmt: off
ROWS: Final[tuple[ClientRow, ...]] = (
    ClientRow(Code.LOGIN, "log in with an account", None, _NOBODY),
    # ---- writing
    ClientRow(Code.OPEN, "topics, and what is needed to encode records; create missing topics",
              OpenRequest, _OPENS, _does(StoreActions.open)),
    ClientRow(Code.BLOCKS, "begin a stream of blocks, to put or to stage them",
              StreamCommand, _WRITES),
    ClientRow(Code.BLOCK, "put or stage a block of records", None, None),
    ClientRow(Code.FINISH, "end the stream", None, None),
    ClientRow(Code.COMMIT, "write staged blocks as one batch", CommitRequest, _WRITES,
              StoreActions.commit),
    ClientRow(Code.ABORT, "drop staged blocks", AbortRequest, _ANYONE,
              StoreActions.abort),
    ClientRow(Code.FLUSH, "write everything to disk", Done, _ADMIN, _does(StoreActions.flush)),
    ClientRow(Code.END_TRANSACTIONS, "commit or roll back transactions",
              EndRequest, _ENDS, _does(StoreActions.end_transactions)),
    ClientRow(Code.TRANSACTION_CHECKS, "half messages whose producer is asked",
              ChecksRequest, _ENDS, _does(StoreActions.transaction_checks)),
    # ---- reading
    ClientRow(Code.OFFSETS, "the ends of the log, and of queues",
              OffsetsRequest, _SEES, _does(StoreActions.offsets)),
    ClientRow(Code.COMMIT_OFFSETS, "move the offsets of a consumer group",
              CommitOffsetsRequest, _MOVES, _does(StoreActions.commit_offsets)),
    ClientRow(Code.QUERY, "messages by key", QueryRequest, _QUERIES,
              _does(StoreActions.query), at_once=2),
    ClientRow(Code.WALK, "the entries of a folder of the store, or all below it", WalkRequest,
              _READS_ALL, _does(StoreActions.walk), at_once=4),
    ClientRow(Code.INFO, "the size of a file", PathRequest, _READS_ALL,
              _does(StoreActions.info)),
    ClientRow(Code.READ, "ranges of files", RangesRequest, _READS_ALL),
    # ---- administration
    ClientRow(Code.CREATE_TOPIC, "create or change a topic", TopicRequest, _ADMIN,
              _does(StoreActions.create)),
    ClientRow(Code.DELETE_TOPIC, "delete a topic", TopicRequest, _ADMIN,
              _does(StoreActions.delete)),
    ClientRow(Code.EXPIRE, "remove the oldest segments", ExpireRequest, _ADMIN,
              _does(StoreActions.expire)),
    ClientRow(Code.PROMOTE, "make a slave the master", PromoteRequest, _ADMIN,
              _does(StoreActions.promote)),
    ClientRow(Code.DEMOTE, "make a master a slave", DemoteRequest, _ADMIN,
              _does(StoreActions.demote)),
    ClientRow(Code.STATS, "figures of the store", Done, _SEES_ALL, _does(StoreActions.stats)),
    ClientRow(Code.STOP, "stop the process", Done, _ADMIN, _does(StoreActions.stop_process)),
)
# fmt: on

BY_CODE: Final = {row.code: row for row in ROWS}
