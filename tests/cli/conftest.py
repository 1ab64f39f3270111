"""The command, run in this process."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rmqstore_spark.cli.app import app
from tests.support.processes.surroundings import log_restored
from tests.support.stores.records import commitlog_folders

Golden = Callable[[str], Path]


@dataclass(frozen=True)
class Ended:
    """How a run of the command ended."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        return self.stdout.decode()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def document(self) -> Any:
        return json.loads(self.stdout)

    @property
    def messages(self) -> list[dict[str, Any]]:
        # Not splitlines: it also splits at other characters, which text may contain.
        return [json.loads(line) for line in self.text.split("\n") if line]


Rmqstore = Callable[..., Ended]


def shown_time(millis: int) -> str:
    """Return a time of RocketMQ's reports as the command prints it."""
    moment = dt.datetime.fromtimestamp(0, dt.timezone.utc) + dt.timedelta(milliseconds=millis)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{millis % 1000:03d}Z"


def read_terminal(main: int) -> str:
    """Read everything written to a pseudo-terminal until its other side is closed."""
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(main, 1 << 16)
        except OSError:  # on Linux: it is closed
            part = b""
        if not part:
            return b"".join(parts).decode().replace("\r\n", "\n")
        parts.append(part)


@pytest.fixture
def rmqstore() -> Rmqstore:
    """Give `rmqstore(*args, code=0)`: runs the command, and checks how it ends."""

    def run(*args: str | os.PathLike[str], code: int = 0) -> Ended:
        with log_restored():
            result = CliRunner().invoke(app, [os.fspath(arg) for arg in args], prog_name="rmqstore")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        ended = Ended(result.exit_code, result.stdout_bytes, result.stderr)
        assert ended.code == code, ended
        if code == 2:
            assert ended.stderr.strip()
            assert "Traceback" not in ended.stderr
        return ended

    return run


@pytest.fixture
def store_of(golden: Golden) -> Callable[[str], list[str]]:
    """Give `store_of(name)`: the arguments that name a golden store."""

    def arguments(name: str) -> list[str]:
        folder = golden(name)
        folders = commitlog_folders(folder)
        more = [f"--commitlog-path={path}" for path in folders] if len(folders) > 1 else []
        return [str(folder / "store"), *more]

    return arguments
