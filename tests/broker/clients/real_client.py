"""The processes of RocketMQ's C++ and Node clients."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

from tools.node import CLIENT, find_node

__all__ = ["RealClient", "cpp_command", "node_command"]

_PATIENCE = 120.0
_FOLDER = Path(__file__).parent


def cpp_command() -> list[str] | None:
    """The command of the C++ client; None if it is not installed."""
    if find_spec("rocketmq") is None:
        return None
    return [sys.executable, str(_FOLDER / "cpp_client.py")]


def node_command() -> list[str] | None:
    """The command of the Node client; None if it is not installed."""
    found = find_node()
    if found is None or not CLIENT.is_dir():
        return None
    return [found[0], str(_FOLDER / "node" / "client.js")]


class RealClient:
    """The client's process.

    Args:
        home: for the files that it logs to.
        command: its command.
        stderr: as `subprocess.Popen` takes it.

    Attributes:
        said: the lines that it has printed.
    """

    def __init__(self, home: Path, *command: object, stderr: int | None = None) -> None:
        self.said: list[str] = []
        self.process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            stderr=stderr, env={**os.environ, "HOME": str(home), "NODE_PATH": str(CLIENT)},
        )  # fmt: skip
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            self.said.extend(iter(lines.readline, ""))

    def words(self, first: str) -> list[list[str]]:
        """The words of the lines that begin with one."""
        return [line.split()[1:] for line in list(self.said) if line.split()[:1] == [first]]

    def send(self, body: str) -> None:
        """Let it send a message."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{body}\n")
        self.process.stdin.flush()

    def end(self) -> int:
        """End its input; return its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(_PATIENCE)
        self._reading.join()
        return code

    def kill(self) -> None:
        """End it at once, and read what it had printed."""
        self.process.kill()
        self.process.wait()
        self._reading.join()

    def got(self) -> set[str]:
        """The bodies that it has consumed. On a starved machine, it sends one twice."""
        return {words[0] for words in self.words("got")}
