"""The single writer of a store: log, queues, index, recovery (`StoreWriter`)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rmqstore_spark.writer.config import StoreConfig
    from rmqstore_spark.writer.status import PutResult, PutStatus
    from rmqstore_spark.writer.store import StoreWriter

__all__ = ["PutResult", "PutStatus", "StoreConfig", "StoreWriter"]

_HOMES: Final = {
    "PutResult": "status",
    "PutStatus": "status",
    "StoreConfig": "config",
    "StoreWriter": "store",
}


def __getattr__(name: str) -> object:
    # Clients and the command need single modules of these, and are to start without the others.
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
