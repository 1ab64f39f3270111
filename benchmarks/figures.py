"""What was measured, as a table: on the terminal, and in RESULTS.md."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

import rmqstore_spark

__all__ = ["Figure", "print_table", "write_results"]

RESULTS: Final = Path(__file__).with_name("RESULTS.md")

_HEADINGS: Final = ("figure", "value", "against", "value", "ratio", "aim", "met")

_ABOUT: Final = """\
# Results

`make bench` measures all this on stores that it makes first, and prints it;
`make bench BENCH_ARGS="--full --write"` writes this page (`--full`: the partition of 20 GB, which
takes 21 GB of disk for a while). Every ratio is of two things measured in the same run, but for
those against RocketMQ: these are its own `getMessage` and decode, 4.9.8, on a machine like this one
with 2 cores, from the fewest to the most messages a second that were seen; the ratio is given
against both ends, and the aim counts as met where it is met against the higher one.

Decode is one thread in one process, no Spark, out of the page cache; a figure is the median of
several passes over a store. "preadv" is what reading the same bytes costs with nothing done to
them: no decoder can be faster than that.
"""

_REASONS_HEADING: Final = "Where an aim is missed, and why"
_REASONS: Final = """
- Three columns of 4 KiB bodies: five times RocketMQ's best would leave 400 ns a message, and
  reading its bytes out of the page cache ("preadv") takes that much alone. The CRC of the body,
  and moving it into its column, come on top. Mapping the files would save a copy, but then a
  file that is cut, or a bad sector, ends the process; so it is not done.
- Large bodies along the log: both ways read and check the same bytes, and those outweigh the
  call per message that reading by queue takes. The page cache answers such a call in well under
  a microsecond; the gain is smallest there.
- Tags without Spark: what is left is 20 bytes of the queue for each message, and a read of its
  own for each that matches. With Spark, where a row costs far more than its decoding, the gain
  is larger.
- Through Spark, against batches that are ready: both halves of the figure run on the same two
  cores, so what decoding costs shows. At 100 B a ready-made row takes 1.26 microseconds of a core
  and ours 1.57; the difference is the 0.31 that decoding alone takes ("all columns, by
  commitlog"), and with three columns it is 0.18 of 0.16: the data source itself adds next to
  nothing. 0.85 would leave decoding 0.22 microseconds, and 0.06 with three columns.
- Tags of 1 KiB messages through Spark: the whole read was done in 1.28 s, the one by tags in
  0.15 s, a job of Spark included.
- The Spark sink, exactly once: Spark, the encoding and the store process share the same two cores,
  and the sink that does nothing keeps them busy already. At 100 B it takes 0.9 microseconds of CPU
  a row; of ours Spark takes 0.8, the encoding and sending 0.5 more, the store 0.7. At 1 KiB it is
  2.7, and 2.6, 1.1 more and 2.8, taken while other work was on the machine too. 0.7 would leave all
  but Spark 0.5 and 1.2 microseconds. The store cannot do with so little: a row is written twice,
  beside the log and into it, and read once, since nothing of a batch may be seen, or be in the log,
  before all tasks are done; and the batch is on disk before the commit is answered. Copying into
  new pages of these two files is a third of the store's CPU at 1 KiB; no other part of it takes a
  tenth. The disk's own rate stands in the table: a commit cannot write faster. At least once,
  staging falls away. Where the store process has cores of its own, only the encoding is left beside
  Spark.
- One message a put under SYNC_FLUSH, each waited for, through the store process: with 16 clients a
  message takes 0.24 ms of CPU there and 0.18 ms in the client, and both share the two cores. The
  put itself is 0.07 of it; the rest is gRPC, Flight, and threads that wake each other once for a
  message each way. RocketMQ's figure is of threads in one process. A client that has several puts
  on its way, or several messages in a put, shares all that among them: the rows below it.
- More than ten times RocketMQ's network producer, at 1 KiB and 4 KiB: 54,000 messages a second is
  one figure for all sizes. 4.9.8 compiled from its sources, broker and producer on these two cores,
  16 or 64 threads that send and wait, gave at best 35,000 at 100 B, 45,000 at 1 KiB and 31,000 at
  4 KiB; the sink wrote 0.66 M, 0.22 M and 0.06 M of them the same hour. With larger bodies the sink
  is held by copying bytes (see above), the producer by its messages.
- Through Flight at 1 KiB and 4 KiB: three runs on one day gave 0.81, 0.58 and 0.44 of in-process
  at 1 KiB and 0.61, 0.48 and 0.46 at 4 KiB, while the disk's own rate fell from 1,982 to 988 MB/s.
  The bytes go through a socket and are copied on both sides, on the same two cores. Single puts
  that are waited for varied as much: 3,043, 1,071 and 2,927 a second with 16 clients.
- Without the compiled kernel every column is built by NumPy and Arrow in several passes. It is
  the reference that the kernel is tested against, and what runs where there is no compiler.
"""


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    Attributes:
        section: heading that it stands under.
        name: what was measured.
        value: what came out.
        against: what it is compared with; empty if it is not.
        other: what came out for that.
        ratio: of the two.
        aim: what the ratio, or the value, ought to be.
        met: whether it is; None where there is no aim.
        note: why not, or what else is to be said.
    """

    section: str
    name: str
    value: str
    against: str = ""
    other: str = ""
    ratio: str = ""
    aim: str = ""
    met: str = ""
    note: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """The line's cells, in the order of the headings."""
        return (
            self.name, self.value, self.against, self.other, self.ratio, self.aim, self.met,
        )  # fmt: skip


def print_table(figures: Sequence[Figure]) -> None:
    """Print all figures as one table."""
    table = Table()
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading in ("figure", "against") else "right")
    section = ""
    for figure in figures:
        if figure.section != section:
            section = figure.section
            table.add_section()
            table.add_row(f"[bold]{section}[/bold]")
        table.add_row(*figure.cells)
    Console(width=None if os.isatty(1) else 160).print(table)


def write_results(figures: Sequence[Figure]) -> None:
    """Write RESULTS.md; sections of it that were not measured this time stay as they are."""
    text = RESULTS.read_text(encoding="utf-8") if RESULTS.is_file() else ""
    sections = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", text, re.MULTILINE))
    sections.pop(_REASONS_HEADING, None)
    for figure in figures:
        sections.pop(figure.section, None)
    for section in dict.fromkeys(figure.section for figure in figures):
        measured = [figure for figure in figures if figure.section == section]
        rows = [f"| {' | '.join(figure.cells)} |" for figure in measured]
        notes = [f"- {figure.name}: {figure.note}" for figure in measured if figure.note]
        sections[section] = "\n".join(
            [
                f"| {' | '.join(_HEADINGS)} |", "|---|---:|---|---:|---:|---:|---|", *rows, "",
                *notes, *([""] if notes else []), _machine(), "",
            ]
        )  # fmt: skip
    body = "".join(f"\n## {name}\n\n{part.strip()}\n" for name, part in sections.items())
    RESULTS.write_text(f"{_ABOUT}{body}\n## {_REASONS_HEADING}\n{_REASONS}", encoding="utf-8")


def _kernel(release: str) -> str:
    """The first two numbers of a kernel's release; what follows is whose build it is."""
    return ".".join(release.split(".")[:2])


def _machine() -> str:
    """When, and on what."""
    import pyarrow as pa
    import pyspark

    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{datetime.now(timezone.utc):%Y-%m-%d}; {os.cpu_count()} x {model}, {memory:.0f} GiB; "
        f"{platform.system()} {_kernel(platform.release())}, Python {platform.python_version()}, "
        f"pyarrow {pa.__version__}, pyspark {pyspark.__version__}, "
        f"rmqstore-spark {rmqstore_spark.__version__}."
    )
