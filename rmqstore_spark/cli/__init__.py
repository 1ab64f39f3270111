"""The `rmqstore` command (docs/cli.md).

    app        registers the commands
    imports    puts off what is slow to import
    commands/  a module for each command, or for a few related ones
    shared/    arguments, connections, reading, printing; the jobs of pipelines use `terminal`, too

Modules that are slow to import are imported inside the command that needs them. From outside it may
import all layers below, but neither Spark nor `datasource`.
"""

from __future__ import annotations


def main() -> None:
    """Run the command with the process's arguments, and end the process."""
    from rmqstore_spark.cli.app import main as run  # all commands: the jobs need `shared` alone

    run()
