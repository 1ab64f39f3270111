"""Removes files because an administrator wants it (upstream: AdminBrokerProcessor)."""

from __future__ import annotations

import logging
from typing import Final

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.broker.core.refusal import Reason, Refusal
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import RefusedError

_log = logging.getLogger(__name__)

_MS_PER_HOUR: Final = 3_600_000


def expire(store: StoreWriter, peer: str) -> None:
    """Begin to remove what is older than `fileReservedTime`, whatever the hour.

    Args:
        store: the store.
        peer: address of who wants it.

    Raises:
        Refusal: the store does not do it now.
    """
    hours = store.config.file_reserved_time
    if hours:
        try:
            store.expire(store.clock() - hours * _MS_PER_HOUR)
        except RefusedError as error:
            raise Refusal(Reason.UNAVAILABLE, str(error)) from error
        _log.info(
            "%s had segments removed that are older than %d hours (fileReservedTime).",
            escaped(peer), hours,
        )  # fmt: skip
