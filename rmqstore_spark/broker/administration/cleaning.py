"""Answers administrators who want files removed (upstream: AdminBrokerProcessor)."""

from __future__ import annotations

import logging
from typing import Final

from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import RefusedError, RemotingError
from rmqstore_spark.printable import escaped
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import RemotingConnection
from rmqstore_spark.remoting.dispatch import Handler

__all__ = ["Cleaning"]

_log = logging.getLogger(__name__)

_MS_PER_HOUR: Final = 3_600_000


class Cleaning:
    """Handles requests to remove files.

    Args:
        store: the store.
    """

    def __init__(self, store: StoreWriter) -> None:
        self._store = store

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers of single requests, by code."""
        return {
            RequestCode.DELETE_EXPIRED_COMMITLOG: self._expire,
            # The files of queues go with the segments that they point to, and the queues of a topic
            # with the topic: there is nothing to clean.
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: lambda _, request: request.answer(),
            RequestCode.CLEAN_UNUSED_TOPIC: lambda _, request: request.answer(),
        }

    def _expire(self, connection: RemotingConnection, request: Command) -> Command:
        """Begin to remove what is older than `fileReservedTime`, whatever the hour."""
        hours = self._store.config.file_reserved_time
        if hours:
            try:
                self._store.expire(self._store.clock() - hours * _MS_PER_HOUR)
            except RefusedError as error:
                raise RemotingError(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)) from error
            _log.info(
                "%s had segments removed that are older than %d hours (fileReservedTime).",
                escaped(connection.peer), hours,
            )  # fmt: skip
        return request.answer()
