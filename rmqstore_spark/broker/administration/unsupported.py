"""Says why some requests of mqadmin are not supported, and what to do instead."""

from __future__ import annotations

from typing import Final

from rmqstore_spark.errors import RemotingError
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import RemotingConnection
from rmqstore_spark.remoting.dispatch import Handler

__all__ = ["unsupported"]

_ACCOUNTS: Final = (
    "accounts are changed in the files of aclPath, which the broker reads again when they change"
)
_POP: Final = (
    "messages are pulled alone, so set clientRebalance of push consumers to true, their default"
)
_WHY: Final[dict[int, str]] = {
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: _ACCOUNTS,
    RequestCode.DELETE_ACL_CONFIG: _ACCOUNTS,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: _ACCOUNTS,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _ACCOUNTS,
    **dict.fromkeys(range(RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_LIST_ACL + 1), _ACCOUNTS),
    **dict.fromkeys(range(RequestCode.POP_MESSAGE, RequestCode.POP_ROLLBACK + 1), _POP),
    RequestCode.BATCH_ACK_MESSAGE: _POP,
    RequestCode.QUERY_ASSIGNMENT: _POP,
    RequestCode.SET_MESSAGE_REQUEST_MODE: _POP,
    RequestCode.RECALL_MESSAGE: "only timer messages can be recalled, which this broker has not",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: (
        "consumers get messages only as they pull them; reset the group with mqadmin "
        "resetOffsetByTime"
    ),
}


def unsupported() -> dict[int, Handler]:
    """Return handlers that refuse, by code."""
    return dict.fromkeys(_WHY, _refuse)


def _refuse(_: RemotingConnection, request: Command) -> Command:
    why = _WHY[request.code]
    raise RemotingError(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        f" request type {request.code} not supported: {why}",
    )
