"""A terminal in which the commands of a page run, one bash for all of them."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import psutil

from tests.support.waiting import eventually

__all__ = ["Terminal"]

_PATIENCE: Final = 400.0
"""Seconds for a block, on a machine that may be busy."""

_AFTERWARDS: Final = 10.0
"""Seconds in which a process in the background prints what the page shows of it."""

_NOISE: Final = re.compile(
    r"""
      WARNING:\ Using\ incubator\ modules
    | Using\ Spark's\ default\ log4j\ profile
    | Setting\ default\ log\ level\ to
    | To\ adjust\ logging\ level\ use
    | \[Stage\ \d+:
    | (?:\d\d/\d\d/\d\d\ )?\d\d:\d\d:\d\d\ WARN\  # of Spark's JVM
    | .*:\ line\ \d+:\ +\d+\ (?:Killed|Terminated|Done)\  # bash on what ran in the background
    """,
    re.VERBOSE,
)
"""What Spark and bash print besides; a page says so once."""

_TIME: Final = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?Z?"


class Terminal:
    """A bash that runs what it is given; `with` ends it, and all that it has started.

    Args:
        folder: where it runs.
        shown_as: the folder's name in the page.
        ports: those of the page, with those that are used in their place.
        environment: its variables.
    """

    def __init__(
        self,
        folder: Path,
        shown_as: str,
        ports: Mapping[int, int],
        environment: Mapping[str, str],
    ) -> None:
        self._folder = folder
        self._theirs = {str(ours): str(theirs) for theirs, ours in ports.items()}
        self._theirs[str(folder)] = shown_as
        self._ours = {theirs: ours for ours, theirs in self._theirs.items()}
        self._lines: queue.Queue[str] = queue.Queue()
        self._blocks = 0
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=folder, env=dict(environment), text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.wait()
        self._reader.join(_PATIENCE)
        for stream in (self._bash.stdin, self._bash.stdout):
            if stream:
                stream.close()

    def save(self, name: str, text: str) -> None:
        """Save a file as the page's reader does."""
        (self._folder / name).write_text(_replaced(text, self._ours), encoding="utf-8")

    def run(self, text: str, exit_code: int, output: str, varies: Iterable[str]) -> None:
        """Run commands, and compare what they print with the page.

        What runs on in the background may print it afterwards.

        Args:
            text: the commands.
            exit_code: of the last one.
            output: what the page shows; a line `...` stands for any lines.
            varies: patterns of what may be different.
        """
        self._blocks += 1
        script = self._folder.parent / f"block-{self._blocks}.sh"
        script.write_text(_replaced(text, self._ours), encoding="utf-8")
        end = f"end of block {self._blocks}: "
        assert self._bash.stdin is not None
        self._bash.stdin.write(f"source {script} < /dev/null; echo '{end}' $?\n")
        self._bash.stdin.flush()
        printed: list[str] = []
        code: int | None = None
        expected = _compared(output.splitlines(), varies)
        deadline = time.monotonic() + _PATIENCE
        while code is None or not _agree(expected, _compared(printed, varies)):
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            before, ended, rest = line.partition(end)
            if ended:
                code = int(rest)
                deadline = time.monotonic() + _AFTERWARDS
            if before and not _NOISE.match(before):
                printed.append(_replaced(before, self._theirs))
        shown = "\n".join(printed)
        assert code == exit_code, f"{text}\nended with {code}, and printed\n{shown}"
        found = _compared(printed, varies)
        assert _agree(expected, found), f"{text}\nprinted\n{shown}\n\nand not\n{output}"

    def all_ended(self) -> None:
        """Check that nothing runs on that the commands have started."""
        bash = psutil.Process(self._bash.pid)
        eventually(
            lambda: all(each.status() == psutil.STATUS_ZOMBIE for each in bash.children()),
            _AFTERWARDS,
        )

    def _read(self) -> None:
        for line in self._bash.stdout or ():
            self._lines.put(line.rstrip("\n"))


def _replaced(text: str, names: Mapping[str, str]) -> str:
    """Put other names into a text, where they stand as words."""
    words = "|".join(re.escape(name) for name in names)
    return re.sub(rf"(?<!\w)(?:{words})(?!\w)", lambda found: names[found[0]], text)


def _compared(lines: Iterable[str], varies: Iterable[str]) -> list[str]:
    """Lines in which what may differ is the same; columns may be wider for it."""
    changing = re.compile("|".join((*varies, _TIME)))
    compared = (" ".join(changing.sub("*", line).split()) for line in lines)
    return [line for line in compared if line]


def _agree(expected: Iterable[str], found: Iterable[str]) -> bool:
    """Whether lines are as expected."""
    pattern = "".join(
        r"(?:.*\n)*" if line == "..." else re.escape(line) + r"\n" for line in expected
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in found)) is not None
