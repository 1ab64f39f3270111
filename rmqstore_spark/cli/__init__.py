"""The `rmqstore` command: look into a store, read its messages, check it (docs/cli.md).

Floor 5. Each module holds one command, or a few that belong together; what takes time to import
is imported when a command needs it.
"""

from __future__ import annotations

from rmqstore_spark.cli.app import main

__all__ = ["main"]
