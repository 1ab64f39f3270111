"""Names of the files that this project, but no broker, puts into a store directory."""

from __future__ import annotations

from typing import Final

__all__ = ["GUARD_NAME", "OWN_FOLDER"]

OWN_FOLDER: Final = "rmqstore"
"""Folder in the store: staged data, bytes that recovery cut off, the ledger of commits."""

GUARD_NAME: Final = "rmqstore-spark.guard"
"""File in `commitlog/` while our writer has the store open, and after it was killed. A broker
refuses to load a store with a file of another size there, before it changes anything."""
