"""The long run of the fault tests, as root.

    python -m tests.fault [--rounds N] [--minutes N] [--only PATTERN] [--write] [--keep FOLDER]

Prints the result of each row of the table. With --write it also adds them to the totals in
docs/reliability.md, after each row, unless something went wrong. With --keep, the stores, logs and
outputs of what went wrong stay in that folder; `--seed` draws the same faults again.
"""

from __future__ import annotations

import argparse
import re
import secrets
import sys
import tempfile
import time
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import Final

from tests.fault.rounds.driver import Row, Tally, run
from tests.fault.rounds.table import ROWS
from tests.support.processes.surroundings import settle_surroundings

_PAGE: Final = Path(__file__).parents[2] / "docs" / "reliability.md"
_BEGIN: Final = "<!-- begin of the figures -->"
_END: Final = "<!-- end of the figures -->"
_HEAD: Final = (
    "| what was done | rounds | faults | messages acknowledged | lost | doubled |\n"
    "|---|---:|---:|---:|---:|---:|\n"
)


def main() -> int:
    """Run all rows; exit code 1 if anything was lost, doubled, or otherwise wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault")
    parser.add_argument("--rounds", type=int, default=100, help="kills at random, of each kind")
    parser.add_argument(
        "--minutes", type=int, default=0, help="repeat the rows for so long (default: once)"
    )
    parser.add_argument("--only", default="", help="rows whose name has this pattern")
    parser.add_argument("--seed", type=int, help="draw the faults of an earlier run again")
    parser.add_argument("--keep", type=Path, help="folder for the stores of what goes wrong")
    parser.add_argument("--write", action="store_true", help="add to docs/reliability.md")
    given = parser.parse_args()
    if missing := {row.lacks() for row in ROWS} - {""}:
        sys.exit(f"The long run needs all its means: {', '.join(missing)}.")
    settle_surroundings()
    end = time.monotonic() + 60 * given.minutes
    wrong = False
    for turn in count():
        for row in ROWS:
            if not re.search(given.only, row.name):
                continue
            if turn and time.monotonic() > end:
                return int(wrong)
            tally = _run(row, given.rounds, given.seed, given.keep)
            print(_line(row.name, tally), flush=True)  # noqa: T201
            for other in tally.others[:5]:
                print(f"  {other}", flush=True)  # noqa: T201
            wrong |= tally.is_wrong
            if given.write and not wrong:
                _add(row.name, tally)
        if not given.minutes:
            break
    return int(wrong)


def _run(row: Row, rounds: int, seed: int | None, keep: Path | None) -> Tally:
    numbers = range(rounds // row.share) if row.share else count()
    seed = secrets.randbelow(1 << 30) if seed is None else seed
    if keep is not None:
        return run(row, keep / str(seed), numbers, seed)
    with tempfile.TemporaryDirectory() as folder:
        return run(row, Path(folder), numbers, seed)


def _line(name: str, tally: Tally) -> str:
    return (
        f"| {name} | {tally.rounds:,} | {tally.faults:,} | {tally.acknowledged:,} | {tally.lost} "
        f"| {tally.doubled} |"
    )


def _add(name: str, tally: Tally) -> None:
    """Add a section's result to the totals on the page."""
    text = _PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    old, _, after = rest.partition(_END)
    totals: dict[str, Tally] = {}
    for found in re.finditer(r"^\| (\D.*?) \| ([\d,| ]+) \|$", old, re.MULTILINE):
        rounds, faults, messages, lost, doubled = map(int, found[2].replace(",", "").split(" | "))
        totals[found[1]] = Tally(rounds, faults, messages, lost, doubled)
    totals[name] = totals.get(name, Tally())
    totals[name] += tally
    everything = Tally()
    for one in totals.values():
        everything += one
    lines = "\n".join(_line(*item) for item in totals.items())
    when = (
        f"All runs of `python -m tests.fault` until {datetime.now(timezone.utc):%Y-%m-%d}: "
        f"{everything.rounds:,} rounds, {everything.faults:,} faults, "
        f"{everything.acknowledged:,} messages acknowledged, {everything.lost} lost, "
        f"{everything.doubled} doubled.\n\n"
    )
    _PAGE.write_text(f"{before}{_BEGIN}\n{when}{_HEAD}{lines}\n{_END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
