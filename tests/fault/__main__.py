"""The long run of the fault tests, as root.

    python -m tests.fault [--rounds N] [--minutes N] [--only PATTERN] [--write]

Prints the result of each section. With --write it also adds them to the totals in
docs/reliability.md, after each section, unless something went wrong.
"""

from __future__ import annotations

import argparse
import re
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from tests.fault.power import why_no_loop_mounts
from tests.fault.rounds.accounts import killed_lives
from tests.fault.rounds.delays import ClockBackAccount, DelayAccount
from tests.fault.rounds.disk import full_disks
from tests.fault.rounds.expiry import ExpiryAccount
from tests.fault.rounds.lost_end import lost_ends
from tests.fault.rounds.remoting.broker import broker_kills
from tests.fault.rounds.remoting.clients import client_kills
from tests.fault.rounds.remoting.kinds import kinds
from tests.fault.rounds.replication import replication_kills
from tests.fault.rounds.service import cut_connections, lost_answers, service_kills
from tests.fault.rounds.staging import IN_FILES, IN_MEMORY, staging_kills
from tests.fault.rounds.transactions import TransactionAccount
from tests.fault.rounds.writer import CALLS, EIO, Tally, at_places, by_calls, kills, power_cuts
from tests.fault.traces import why_no_strace
from tests.support.processes.surroundings import settle_surroundings

_PAGE: Final = Path(__file__).parents[2] / "docs" / "reliability.md"
_BEGIN: Final = "<!-- begin of the figures -->"
_END: Final = "<!-- end of the figures -->"
_HEAD: Final = (
    "| what was done | rounds | faults | messages acknowledged | lost | doubled |\n"
    "|---|---:|---:|---:|---:|---:|\n"
)


def _sections(rounds: int, seed: int) -> Iterator[tuple[str, Callable[[Path], Tally]]]:
    for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        killed = partial(kills, rounds=rounds, flush=flush, first_seed=seed)
        yield f"killed at random, {flush}", killed
    yield "killed at each named place", at_places
    for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        cuts = partial(power_cuts, rounds=rounds // 2, flush=flush, first_seed=seed)
        yield f"power cut at random, {flush}", cuts
    damaged = partial(lost_ends, rounds=rounds, first_seed=seed)
    yield "the end of the log damaged in each form, after a kill or a clean close", damaged
    for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        served = partial(service_kills, rounds=rounds, flush=flush)
        yield f"store process killed under a client, {flush}", served
    replicated = partial(replication_kills, rounds=rounds, first_seed=seed)
    yield "master, follower or both killed under a client", replicated
    expiring = partial(replicated, expires=True)
    yield "the same, and the master's segments go to an archive and expire", expiring
    yield "answers to commits and puts lost", partial(lost_answers, rounds=rounds)
    yield "connections cut after any number of bytes", partial(cut_connections, rounds=rounds)
    yield "disk full at any fill level", partial(full_disks, rounds=rounds // 2)
    for where, memory in (("in memory", IN_MEMORY), ("in files", IN_FILES)):
        staged = partial(staging_kills, rounds=rounds // 2, memory=memory, first_seed=seed)
        yield f"store process killed under several clients, stages {where}", staged
    for what, account in (
        ("transactions", TransactionAccount),
        ("delayed messages", DelayAccount),
        ("delayed messages and a clock that goes back", ClockBackAccount),
        ("expiry beside a reader", ExpiryAccount),
    ):
        lives = partial(killed_lives, account=account, first_seed=seed)
        yield f"{what}, killed at random and at named places", partial(lives, rounds=rounds)
        if account is not ExpiryAccount:
            cut = partial(lives, rounds=rounds // 4, is_power_cut=True)
            yield f"{what}, power cut", cut
    clustered = partial(broker_kills, rounds=rounds, first_seed=seed)
    yield "broker, name server or application killed, RocketMQ's protocol", clustered
    for client, make in kinds().items():
        killed = partial(client_kills, rounds=rounds // 4, make=make, first_seed=seed)
        yield f"{client}, broker or name server killed in each phase", killed
    for call in CALLS:
        yield f"killed at the k-th {call}, for every k", partial(by_calls, call=call)
    for call in CALLS:
        yield f"the k-th {call} fails, for every k", partial(by_calls, call=call, fault=EIO)


def main() -> int:
    """Run all sections; exit code 1 if anything was lost, doubled, or otherwise wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault")
    parser.add_argument("--rounds", type=int, default=100, help="kills at random, of each kind")
    parser.add_argument(
        "--minutes", type=int, default=0, help="repeat the sections for so long (default: once)"
    )
    parser.add_argument("--only", default="", help="sections whose name has this pattern")
    parser.add_argument("--write", action="store_true", help="add to docs/reliability.md")
    given = parser.parse_args()
    if missing := why_no_loop_mounts() or why_no_strace():
        sys.exit(f"The long run needs all its means: {missing}.")
    settle_surroundings()
    end = time.monotonic() + 60 * given.minutes
    wrong = False
    for turn in count():
        for name, run in _sections(given.rounds, secrets.randbelow(1 << 30)):
            if not re.search(given.only, name):
                continue
            if turn and time.monotonic() > end:
                return int(wrong)
            with tempfile.TemporaryDirectory() as folder:
                tally = run(Path(folder))
            print(_line(name, tally), flush=True)  # noqa: T201
            for other in tally.others[:5]:
                print(f"  {other}", flush=True)  # noqa: T201
            wrong |= bool(tally.lost or tally.doubled or tally.others)
            if given.write and not wrong:
                _add(name, tally)
        if not given.minutes:
            break
    return int(wrong)


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
