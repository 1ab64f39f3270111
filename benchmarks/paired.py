"""Compares this checkout with an earlier commit: the same figures of both, in turns.

`python -m benchmarks.paired COMMIT decode writer` measures both three times, and prints a table for
the message of the commit.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.report.figures import Figure, met, print_table, spread

__all__ = ["main"]

ROOT: Final = Path(__file__).resolve().parents[1]
_SECTION: Final = "Before and now, in turns"
_VALUE: Final = re.compile(r"(-?[\d,]+(?:\.\d+)?) ?(\S*)")
_NO_WORSE: Final = 0.95
"""Of medians of a few turns: what the same code differs by from one measurement to the next."""


class _Value(NamedTuple):
    """A figure of one run.

    Attributes:
        text: as it was printed.
        number: its first number.
        is_rate: whether more is better.
    """

    text: str
    number: float
    is_rate: bool

    def as_good_as(self, other: _Value) -> float:
        """Return how many times as good as another value this one is."""
        return self.number / other.number if self.is_rate else other.number / self.number


_NOTHING: Final = _Value("", 0.0, False)


def main() -> None:
    """Parse the command line, and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paired", description=__doc__)
    parser.add_argument("commit", help="the earlier commit")
    parser.add_argument("name", nargs="+", help="what to measure, as for `python -m benchmarks`")
    parser.add_argument("--turns", type=int, default=3, help="how often each side is measured")
    parser.add_argument("--folder", type=Path, default=ROOT / ".bench", help="of the stores")
    arguments = parser.parse_args()
    figures = []
    with _checkout(arguments.commit) as before:
        for name in arguments.name:
            turns = [
                (_figures(before, name, arguments.folder), _figures(ROOT, name, arguments.folder))
                for _ in range(arguments.turns)
            ]
            figures += list(_compared(name, arguments.commit, turns))
    print_table(figures)


@contextmanager
def _checkout(commit: str) -> Iterator[Path]:
    """Check a commit out, and build its kernel."""
    with tempfile.TemporaryDirectory(prefix="rmqstore-paired-") as folder:
        path = Path(folder) / "before"
        _git("worktree", "add", "--detach", str(path), commit)
        try:
            build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
            subprocess.run(build, cwd=path, check=True)
            yield path
        finally:
            _git("worktree", "remove", "--force", str(path))


def _git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def _figures(checkout: Path, name: str, folder: Path) -> dict[str, _Value]:
    """Measure one thing with the code of a checkout; return figures by name."""
    command = [sys.executable, "-m", "benchmarks", "--only", name, "--folder", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(
        command, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    print(done.stdout, flush=True)
    found: dict[str, _Value] = {}
    seen: Counter[str] = Counter()
    last: dict[str, str] = {}
    for line in done.stdout.splitlines():
        what, separator, rest = line.partition(" | ")
        text = rest.partition(" | ")[0]
        value = _VALUE.match(text)
        if separator and value is not None and last.get(what) != text:
            last[what] = text  # the same value again is compared with something else
            seen[what] += 1  # rows of several sections can have one name; their order is the same
            number, unit = float(value[1].replace(",", "")), text[value.end(1) :]
            found[f"{what} ({seen[what]})"] = _Value(text, number, "/s" in unit)
    return found


def _compared(
    name: str, commit: str, turns: Sequence[tuple[dict[str, _Value], dict[str, _Value]]]
) -> Iterator[Figure]:
    sides = [side for turn in turns for side in turn]
    for what in sides[0]:
        if any(side.get(what, _NOTHING).number <= 0 for side in sides):
            continue  # one side does not measure it, or it has no ratio
        ratios = [now[what].as_good_as(before[what]) for before, now in turns]
        ratio = statistics.median(ratios)
        before, now = (
            sorted((turn[side][what] for turn in turns), key=lambda one: one.number)
            for side in (0, 1)
        )
        yield Figure(
            f"{_SECTION}: {name}",
            what.removesuffix(" (1)"),
            now[len(now) // 2].text,
            f"commit {commit[:7]}",
            before[len(before) // 2].text,
            f"{ratio:.2f}",
            f"{_NO_WORSE:g}",
            met(ratio >= _NO_WORSE),
            f"{spread(ratios)} in {len(turns)} turns",
        )


if __name__ == "__main__":
    main()
