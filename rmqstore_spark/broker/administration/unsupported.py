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
_CLEANING: Final = "the broker removes what has expired by itself (fileReservedTime, deleteWhen)"
_WHY: Final = {
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: _ACCOUNTS,
    RequestCode.DELETE_ACL_CONFIG: _ACCOUNTS,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: _ACCOUNTS,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _ACCOUNTS,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: _CLEANING,
    RequestCode.CLEAN_UNUSED_TOPIC: "delete a topic with mqadmin deleteTopic",
    RequestCode.DELETE_EXPIRED_COMMITLOG: _CLEANING,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: (
        "consumers get messages only as they pull them; reset the group with mqadmin "
        "resetOffsetByTime"
    ),
}


def unsupported() -> dict[int, Handler]:
    """Return handlers that refuse, by code."""
    return dict.fromkeys(_WHY, _refuse)


def _refuse(_: RemotingConnection, request: Command) -> Command:
    why = _WHY[RequestCode(request.code)]
    raise RemotingError(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        f" request type {request.code} not supported: {why}",
    )
