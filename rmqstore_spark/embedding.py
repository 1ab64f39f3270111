"""A store process that ends with the program that started it: `rmqstore_spark.embedded`.

For notebooks, scripts and tests. The process is `rmqstore serve` on a free port of the loopback
address. It ends with its `with` block, with the interpreter, and when this program is killed: its
standard input is a pipe whose other end only this program holds. A Spark session that starts after
it runs its workers with this program's Python, unless PYSPARK_PYTHON names another.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, TypeAlias

from rmqstore_spark.base.settings import as_text
from rmqstore_spark.base.workers import use_this_python
from rmqstore_spark.errors import OptionError, ServiceError

Setting: TypeAlias = str | int | float | bool

READY_SECONDS: Final = 120.0
"""Default time limit for the start of a store process, in seconds."""

_STOP_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.02
_SHOWN_LINES: Final = 20
_SHOWN_BYTES: Final = 8 << 10


class EmbeddedStore:
    """A store process of this program.

    As a context manager it returns the endpoint. Outside of `with`, call `start` and `stop`. After
    `stop`, or after the process was killed, `start` starts it again on the same port.

    Args:
        path: the store directory; created if it does not exist.
        port: port to listen on; 0 for any free one.
        ready_seconds: time limit for the start. A store that was not closed is recovered first,
            which takes about a second per GB.
        settings: keys of the store's configuration (docs/configuration.md).

    Raises:
        OptionError: the port is negative or given twice, or the settings keep this program out.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        port: int = 0,
        ready_seconds: float = READY_SECONDS,
        settings: Mapping[str, Setting] | None = None,
    ) -> None:
        if port < 0:
            raise OptionError(
                f"EmbeddedStore cannot have port {port}: this program reaches its store over a "
                "port. Give 0 for any free one."
            )
        if "listenPort" in (settings or {}):
            raise OptionError("Give the port of an embedded store as port=, not as listenPort.")
        if (settings or {}).get("clients") == "rocketmq":
            raise OptionError(
                "This program reaches its store as Spark's clients do: give clients='all'."
            )
        self.path = os.path.abspath(os.fspath(path))
        self._port = port
        self._ready_seconds = ready_seconds
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._endpoint = ""
        self._output: BinaryIO | None = None
        self._end: weakref.finalize[..., EmbeddedStore] | None = None

    def __enter__(self) -> str:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"EmbeddedStore({self.path!r}, {self._endpoint or 'not started'})"

    @property
    def endpoint(self) -> str:
        """The address of the store process, as the option `endpoint` accepts it.

        Raises:
            ServiceError: the process was not started.
        """
        if not self._endpoint:
            raise ServiceError(f"The store {self.path} is not served: call start() first.")
        return self._endpoint

    @property
    def pid(self) -> int | None:
        """The id of the process, or None if it does not run."""
        if self._process is None or self._process.poll() is not None:
            return None
        return self._process.pid

    @property
    def output(self) -> str:
        """The last lines of the process's output, which is its log."""
        if self._output is None:
            return ""
        written = self._output.fileno()
        begin = max(0, os.fstat(written).st_size - _SHOWN_BYTES)
        said = os.pread(written, _SHOWN_BYTES, begin)  # the process writes at the file's position
        lines = said.decode("utf-8", "backslashreplace").splitlines()
        return "\n".join(lines[-_SHOWN_LINES:])

    def start(self) -> str:
        """Start the process, wait until it serves, and return its endpoint.

        Raises:
            ServiceError: the process did not start to serve; the text holds its output.
            OptionError: path or settings cannot be passed to a process.
        """
        use_this_python()  # only workers of this machine can reach the endpoint
        if self.pid is not None:
            return self.endpoint
        self.stop()
        # Nothing must be left behind if this program is killed: the output file has no name, and
        # the process removes the other file.
        try:
            ready = Path(tempfile.gettempdir(), f"rmqstore-{secrets.token_hex(16)}.json")
            output = tempfile.TemporaryFile()  # noqa: SIM115 - `_stop` closes it
        except OSError as error:
            raise ServiceError(
                f"The store process for {self.path!r} needs a temporary folder: {error}. Set "
                "TMPDIR to a writable folder."
            ) from None
        try:
            process = self._begin(ready, output)
        except BaseException:
            output.close()
            raise
        self._process, self._output = process, output
        self._end = weakref.finalize(self, _stop, os.getpid(), process, ready, output)
        try:
            self._endpoint = self._wait(process, ready)
        except BaseException:
            self.stop()
            raise
        self._port = int(self._endpoint.rpartition(":")[2])
        return self._endpoint

    def stop(self) -> None:
        """Stop the process with SIGTERM. It flushes acknowledged messages and closes the store."""
        if self._end is not None:
            self._end()
        self._process = self._end = self._output = None

    def kill(self) -> None:
        """Kill the process, as `kill -9` does. The next `start` recovers the store."""
        if self._process is not None:
            self._process.kill()
        self.stop()

    def _begin(self, ready: Path, output: BinaryIO) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                self._command(ready),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for this program, which stops the store after its own work.
                start_new_session=True,
            )
        except OSError as error:
            raise ServiceError(
                f"The store process for {self.path!r} cannot be started with Python "
                f"{sys.executable!r} (sys.executable): {error}. Start it separately with "
                "rmqstore serve, and use its endpoint."
            ) from None
        except ValueError as error:
            raise OptionError(
                f"Path {self.path!r} or settings {self._settings!r} cannot be passed to a "
                f"process: {error}."
            ) from None

    def _command(self, ready: Path) -> list[str]:
        settings = {name: as_text(value) for name, value in self._settings.items()}
        return [
            *(sys.executable or "", "-m", "rmqstore_spark.cli", "serve"),
            *("--store", self.path, "--host", "127.0.0.1", "--port", str(self._port)),
            *("--ready-file", str(ready), "--until-stdin-ends"),
            *(f"--set={name}={value}" for name, value in settings.items()),
        ]

    def _wait(self, process: subprocess.Popen[bytes], ready: Path) -> str:
        deadline = time.monotonic() + self._ready_seconds
        while time.monotonic() < deadline:
            if ready.exists():
                endpoint: str = json.loads(ready.read_text(encoding="utf-8"))["endpoint"]
                return endpoint
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(_LOOK_SECONDS)
                raise ServiceError(
                    f"The store process for {self.path} exited with code {code} before it was "
                    f"ready. Its output: {self.output or 'nothing.'}"
                )
        raise ServiceError(
            f"The store process for {self.path} was not ready within {self._ready_seconds:g} s. "
            f"Raise ready_seconds. Its output: {self.output or 'nothing.'}"
        )


def _stop(owner: int, process: subprocess.Popen[bytes], ready: Path, output: BinaryIO) -> None:
    """End a process and its children. It may have ended already."""
    if os.getpid() != owner:
        return  # this is a fork of the program that started the process
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # not reaped: the group id is still its own
            process.wait()
    if process.stdin is not None:
        process.stdin.close()
    ready.unlink(missing_ok=True)  # left over if the process was killed
    output.close()
