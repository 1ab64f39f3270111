"""A server that the benchmark starts in a folder of its own, as a user without rights."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

__all__ = ["ServerProcess", "run_as"]

_LONGEST: Final = 120.0
"""Seconds that a server may take to start or stop."""


class ServerProcess:
    """Starts and stops one server.

    Args:
        folder: its files; made by `make` when it is empty.
        user: who runs it, if this process may choose.
        stop_signal: asks it to stop cleanly.
        make: makes its files.
        command: starts it; gets the folder of the socket.
        ask: connects, asks for something, and disconnects; raises while the server is not ready.
        errors: what `ask` raises then.

    Attributes:
        place: the folder of its socket.
        pid: of its first process.
    """

    def __init__(
        self, folder: Path, user: str, stop_signal: signal.Signals,
        make: Callable[[], None], command: Callable[[str], Sequence[str]],
        ask: Callable[[str], None], errors: type[Exception],
    ) -> None:  # fmt: skip
        self._folder, self._user, self._signal = folder, user, stop_signal
        self._command, self._ask, self._errors = command, ask, errors
        self.place = tempfile.mkdtemp(prefix="stores-")  # a socket's path is short
        self._log = folder.with_name(folder.name + ".log")
        self._process: subprocess.Popen[bytes] | None = None
        for path in (folder, Path(self.place)):
            path.mkdir(parents=True, exist_ok=True)
            if os.geteuid() == 0:
                shutil.chown(path, user, user)
        if not any(folder.iterdir()):
            folder.chmod(0o700)
            make()

    @property
    def pid(self) -> int:
        assert self._process is not None  # noqa: S101  # it was started
        return self._process.pid

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(self.place), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd="/", **run_as(self._user),
            )  # fmt: skip
        limit = time.monotonic() + _LONGEST
        while True:
            try:
                self._ask(self.place)
            except self._errors:
                if self._process.poll() is not None or time.monotonic() > limit:
                    raise SystemExit(f"a server does not start: {self._log.read_text()}") from None
                time.sleep(0.002)
            else:
                return

    def stop(self) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(self._signal)
            self._process.wait(_LONGEST)
            self._process = None

    def killed(self) -> None:
        """Reap it after it was killed."""
        if self._process is not None:
            self._process.wait(_LONGEST)
            self._process = None


def run_as(user: str) -> dict[str, Any]:
    """Return who runs a server: a root who starts one gives it to somebody without rights."""
    return {"user": user, "group": user} if os.geteuid() == 0 else {}
