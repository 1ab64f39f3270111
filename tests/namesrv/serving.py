"""A name server of ours as a process of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cli.processes import COMMAND, ROOT
from tests.support.processes.forked import start

__all__ = ["NamesrvProcess"]


class NamesrvProcess:
    """`rmqstore namesrv` on a free port, as a context manager.

    Args:
        folder: for its files.
        arguments: of the command.
        begin: starts it, as a fork by default.

    Attributes:
        address: where it listens.
        process: the process.
        kv_file: its key-value configuration.
    """

    def __init__(self, folder: Path, *arguments: str, begin: Callable[..., Any] = start) -> None:
        self.kv_file = folder / "kvConfig.json"
        self._log = folder / "log"
        with self._log.open("w") as stderr:
            self.process = begin(
                [
                    *(*COMMAND, "namesrv", "--port", "0"),
                    f"--set=kvConfigPath={self.kv_file}",
                    *arguments,
                ],
                cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr,
            )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        assert line.startswith("rmqstore: name server on "), self.log
        self.address = line.split()[-1]

    def __enter__(self) -> NamesrvProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    @property
    def log(self) -> str:
        """What it has logged."""
        return self._log.read_text()
