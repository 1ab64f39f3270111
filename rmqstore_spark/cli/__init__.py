"""The `rmqstore` command (docs/cli.md).

    app        registers the commands, and handles how they end
    commands/  a module for each command, or for a few related ones
    shared/    arguments, connections, reading, printing

Modules that are slow to import are imported inside the command that needs them.
"""

from __future__ import annotations

from rmqstore_spark.cli.app import main

__all__ = ["main"]
