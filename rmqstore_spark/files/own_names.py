"""Names of what this project puts into a store directory, and a broker does not."""

from __future__ import annotations

from typing import Final

__all__ = ["GUARD_NAME", "OWN_FOLDER"]

OWN_FOLDER: Final = "rmqstore"
"""Below the store: staged data, what recovery cut off, the ledger of commits."""

GUARD_NAME: Final = "rmqstore-spark.guard"
"""In `commitlog/` while our writer has the store open, and after it was killed: a broker refuses to
load a store with a file of another size there, before it touches anything."""
