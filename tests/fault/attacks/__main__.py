"""Do all attacks, and print a line of each."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.fault.attacks.driver import attacked, run
from tests.fault.attacks.table import ATTACKS


def main() -> None:
    """Do them."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault.attacks")
    parser.add_argument("--only", action="append", default=[], help="the name of an attack")
    parser.add_argument("--how", default="tcp", choices=["tcp", "tls", "socket"])
    parser.add_argument("--scale", type=float, default=1.0, help="how much of each; 1 is all of it")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where the store goes")
    given = parser.parse_args()
    heads = ("attack", "peak MB", "10 s later MB", "asked", "failed", "seconds", "median ms")
    sys.stdout.write(" | ".join((*heads, "p99 ms", "most ms", "what came of it\n")))
    for row in ATTACKS:
        if given.only and row.name not in given.only:
            continue
        with (
            tempfile.TemporaryDirectory(dir=given.folder) as folder,
            attacked(Path(folder), row.on, given.scale, given.how) as target,
        ):
            found = run(row.does, target)
        figures = [found.peak >> 20, found.after >> 20, found.asked, len(found.failed)]
        times = [f"{found.latency(share) * 1000:.1f}" for share in (0.5, 0.99, 1.0)]
        cells = [row.name, *figures, f"{found.seconds:.1f}", *times, found.told.strip()]
        sys.stdout.write(f"{' | '.join(map(str, cells))} {found.failed[:2] or ''}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
