"""The long run of the fault tests: `python -m tests.fault [--rounds N] [--write]`, as root.

Prints what was done and what came of it, and with --write puts that into docs/reliability.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Final

from tests.fault.disk_rounds import full_disks
from tests.fault.power import why_no_loop_mounts
from tests.fault.rounds import CALLS, EIO, Tally, at_places, by_calls, kills, power_cuts
from tests.fault.service_rounds import cut_connections, lost_answers, service_kills
from tests.fault.traces import why_no_strace
from tests.support.surroundings import settle_surroundings

_PAGE: Final = Path(__file__).parents[2] / "docs" / "reliability.md"
_BEGIN: Final = "<!-- begin of the figures -->"
_END: Final = "<!-- end of the figures -->"
_HEAD: Final = (
    "| what was done | rounds | faults | messages acknowledged | lost | doubled |\n"
    "|---|---:|---:|---:|---:|---:|\n"
)


def _sections(rounds: int) -> Iterator[tuple[str, Callable[[Path], Tally]]]:
    for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        yield f"killed at random, {flush}", partial(kills, rounds=rounds, flush=flush)
    yield "killed at each named place", at_places
    for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        cuts = partial(power_cuts, rounds=rounds // 2, flush=flush)
        yield f"power cut at random, {flush}", cuts
    for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        served = partial(service_kills, rounds=rounds, flush=flush)
        yield f"store process killed under a client, {flush}", served
    yield "answers to commits and puts lost", partial(lost_answers, rounds=rounds)
    yield "connections cut after any number of bytes", partial(cut_connections, rounds=rounds)
    yield "disk full at any fill level", partial(full_disks, rounds=rounds // 2)
    for call in CALLS:
        yield f"killed at the k-th {call}, for every k", partial(by_calls, call=call)
    for call in CALLS:
        yield f"the k-th {call} fails, for every k", partial(by_calls, call=call, fault=EIO)


def main() -> int:
    """Run all sections; exit code 1 if anything was lost, doubled, or otherwise wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault")
    parser.add_argument("--rounds", type=int, default=100, help="kills at random, of each kind")
    parser.add_argument("--write", action="store_true", help="write docs/reliability.md")
    given = parser.parse_args()
    if missing := why_no_loop_mounts() or why_no_strace():
        sys.exit(f"The long run needs all its means: {missing}.")
    settle_surroundings()
    lines, wrong = [], False
    for name, run in _sections(given.rounds):
        with tempfile.TemporaryDirectory() as folder:
            tally = run(Path(folder))
        line = (
            f"| {name} | {tally.rounds} | {tally.faults} | {tally.acknowledged:,} | {tally.lost} "
            f"| {tally.doubled} |"
        )
        print(line, flush=True)  # noqa: T201
        for other in tally.others[:5]:
            print(f"  {other}", flush=True)  # noqa: T201
        lines.append(line)
        wrong |= bool(tally.lost or tally.doubled or tally.others)
    if given.write and not wrong:
        _write(lines)
    return int(wrong)


def _write(lines: list[str]) -> None:
    text = _PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    when = f"`python -m tests.fault`, {datetime.now(timezone.utc):%Y-%m-%d}:\n\n"
    table = "\n".join([_HEAD.rstrip("\n"), *lines])
    _PAGE.write_text(f"{before}{_BEGIN}\n{when}{table}\n{_END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
