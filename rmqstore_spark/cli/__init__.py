"""The `rmqstore` command (docs/cli.md).

    app        the commands by name, and how they end
    commands/  a module for each command, or for a few that belong together
    shared/    arguments, connections, printing

Modules that take long to import are imported inside the command that needs them.
"""

from __future__ import annotations

from rmqstore_spark.cli.app import main

__all__ = ["main"]
