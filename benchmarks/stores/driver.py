"""Runs the measurements: folders, servers, children, kills, and what was written."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.means.child import ROOT, in_child
from benchmarks.stores.kind import Kind, Opening, Server
from benchmarks.stores.messages import Load

__all__ = ["Place", "Templates", "bytes_on_disk", "bytes_written"]

_OPERATIONS: Final = "benchmarks.stores.operations"


@dataclass
class Place:
    """Where one store is.

    Attributes:
        kind: of store.
        folder: its files.
        server: its server, if it needs one.
        empty: bytes on disk of a store without messages.
    """

    kind: Kind
    folder: Path
    server: Server | None
    empty: int

    def run(self, operation: str, load: Load, *, opened: Opening | None = None, **more: Any) -> Any:
        """Run an operation in a process of its own.

        Args:
            operation: a function of `operations`.
            load: the messages.
            opened: how the store is opened, but for its place.
            more: what else the operation takes.
        """
        return in_child(f"{_OPERATIONS}:{operation}", **self._arguments(load, opened), **more)

    def _arguments(self, load: Load, opened: Opening | None) -> dict[str, Any]:
        opening = asdict(opened or Opening("", load.queues))
        opening["place"] = self.server.place if self.server else str(self.folder)
        sizes = {"size": load.size, "queues": load.queues, "count": load.count}
        return {"kind": self.kind.name, "opening": opening, "load": sizes}

    def start(self) -> float:
        """Start the server, if there is one; return seconds."""
        begin = time.perf_counter()
        if self.server:
            self.server.start()
        return time.perf_counter() - begin

    def stop(self) -> None:
        """Stop the server, if there is one."""
        if self.server:
            self.server.stop()

    @property
    def bytes_on_disk(self) -> int:
        """Bytes that messages take, and what the store keeps for them."""
        return bytes_on_disk(self.folder) - self.empty

    def leave(self, load: Load, opened: Opening, more: int, enough: int) -> int:
        """Append messages, and kill the process and its server with SIGKILL.

        Args:
            load: the messages.
            opened: how the store is opened, but for its place.
            more: how many of them are appended one by one.
            enough: kill when so many of these are acknowledged.

        Returns:
            The number of the last message that was acknowledged.
        """
        arguments = {**self._arguments(load, opened), "more": more}
        command = [sys.executable, "-m", "benchmarks.means.child", f"{_OPERATIONS}:leave"]
        child = subprocess.Popen(
            [*command, json.dumps(arguments)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None  # noqa: S101  # a pipe
        last = -1
        for _ in range(enough):
            line = child.stdout.readline()
            if not line:
                raise SystemExit(f"{self.kind.name}: the process that appends has ended")
            last = int(line)
        victims = [child.pid]
        if self.server:
            server = psutil.Process(self.server.pid)
            victims += [server.pid, *(each.pid for each in server.children(recursive=True))]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        for line in child.stdout:  # what it had printed, and was not read yet
            if line.endswith("\n"):
                last = int(line)
        child.wait()
        if self.server:
            self.server.killed()
        return last


class Templates:
    """Makes places; what a server needs is made once, and copied.

    Args:
        folder: of all of them, removed by the caller.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, Path] = {}
        self._empty: dict[str, int] = {}

    def needs_server(self, kind: Kind) -> bool:
        """Return whether a kind of store has a server."""
        return self._template(kind) is not None

    @contextmanager
    def place(self, kind: Kind) -> Iterator[Place]:
        """Make a place for a store; it is removed afterwards."""
        folder = Path(tempfile.mkdtemp(prefix="store-", dir=self._folder))
        folder.chmod(0o755)
        path = folder / "files"
        template = self._template(kind)
        if template:
            subprocess.run(["cp", "-a", str(template), str(path)], check=True)
        else:
            path.mkdir()
        server = kind.server(path)
        try:
            yield Place(kind, path, server, self._empty.get(kind.name, 0))
        finally:
            if server:
                server.stop()
                shutil.rmtree(server.place, ignore_errors=True)
            shutil.rmtree(folder)

    def _template(self, kind: Kind) -> Path | None:
        path = self._folder / f"template-{kind.name}"
        if kind.name not in self._made:
            server = kind.server(path)
            if server is None:
                return None
            server.start()
            server.stop()
            shutil.rmtree(server.place, ignore_errors=True)
            self._made[kind.name] = path
            self._empty[kind.name] = bytes_on_disk(path)
        return self._made[kind.name]


def bytes_on_disk(folder: Path) -> int:
    """Return the bytes of the blocks that the files of a folder have (as `du`)."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def bytes_written() -> int:
    """Return what this process, and all that it has waited for, have caused to be written to disk.

    `write_bytes` of /proc/PID/io (Linux, Documentation/filesystems/proc.rst): a page of a file
    counts when it becomes dirty. Linux adds that of a process to its parent's when the parent
    waits for it. What the file system's own journal writes is not in it.
    """
    for line in Path("/proc/self/io").read_text().splitlines():
        name, _, value = line.partition(": ")
        if name == "write_bytes":
            return int(value)
    raise SystemExit("the system does not tell how much a process has written")
