"""`rmqstore verify`."""

from __future__ import annotations

from rmqstore_spark.cli.parameters import StorePath

__all__ = ["verify"]


def verify(store_path: StorePath) -> None:
    """Check everything that can be checked."""
