"""RocketMQ's codes for the reasons of a broker's refusals."""

from __future__ import annotations

from typing import Final

from rmqstore_spark.broker.core.refusal import Reason, Refusal
from rmqstore_spark.errors import RemotingError
from rmqstore_spark.remoting.codec.codes import ResponseCode

_CODES: Final = {
    Reason.WRONG: ResponseCode.SYSTEM_ERROR,
    Reason.BUSY: ResponseCode.SYSTEM_BUSY,
    Reason.UNAVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    Reason.SLAVE: ResponseCode.SLAVE_NOT_AVAILABLE,
    Reason.ILLEGAL_MESSAGE: ResponseCode.MESSAGE_ILLEGAL,
    Reason.NOT_PERMITTED: ResponseCode.NO_PERMISSION,
    Reason.NO_TOPIC: ResponseCode.TOPIC_NOT_EXIST,
    Reason.NO_GROUP: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    Reason.NOT_FOUND: ResponseCode.QUERY_NOT_FOUND,
    Reason.NO_SUBSCRIPTION: ResponseCode.SUBSCRIPTION_NOT_EXIST,
    Reason.OLD_SUBSCRIPTION: ResponseCode.SUBSCRIPTION_NOT_LATEST,
    Reason.UNSUPPORTED: ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    Reason.NOT_CONNECTED: ResponseCode.CONSUMER_NOT_ONLINE,
}


def refused(error: Refusal) -> RemotingError:
    """Return what a refusal is in RocketMQ's protocol."""
    return RemotingError(_CODES[error.reason], error.remark)
