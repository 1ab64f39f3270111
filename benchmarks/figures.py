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

`make bench` creates stores, measures everything below on them, and prints the results.
`make bench BENCH_ARGS="--full --write"` also writes this page. `--full` adds the partition of 20
GB, which needs 21 GB of disk during the run. Every ratio compares two things measured in the same
run, except the ratios against RocketMQ. Those use `getMessage` and decode of RocketMQ 4.9.8,
measured on a similar machine with 2 cores, and give a range: the lowest and the highest messages
a second seen. The ratio is given against both ends. The aim counts as met if it is met against
the higher end.

Decode runs in one thread of one process, without Spark, from the page cache. Each figure is the
median of several passes over a store. "preadv" is the cost of reading the same bytes without
processing them: no decoder can be faster.
"""

_REASONS_HEADING: Final = "Where an aim is missed, and why"
_REASONS: Final = """
- Three columns, 4 KiB bodies: five times RocketMQ's best would leave 400 ns for a message.
  Reading its bytes from the page cache ("preadv") takes that much alone. The CRC of the body and
  the copy into its column come on top. Mapping the files would save a copy, but then a truncated
  file or a bad sector would kill the process, so files are not mapped.
- `planBy=commitlog` with large bodies: both plans read and check the same bytes, which outweigh
  the one call for each message that reading by queue makes. The page cache answers such a call in
  well under a microsecond, so the gain is smallest there.
- Reading 64 queues one by one, 100 B bodies: perf found 57 % of the CPU in the operating system,
  almost half of that in copying. Each message takes a call of its own, because 19 KB of other
  queues' records lie between two messages of a queue, and reading those as well would copy 64
  times the bytes. `planBy=auto` reads such a store along the log.
- Tags, without Spark: the remaining cost is 20 bytes of the queue for each message, and a
  separate read for each match. With Spark, where a row costs far more than its decoding, the gain
  is larger.
- Spark, compared with ready-made batches: both sides of the ratio run on the same two cores, so
  the cost of decoding shows. At 100 B a ready-made row takes 1.26 microseconds of a core, and a
  decoded row 1.57. The difference is the 0.31 that decoding alone takes ("all columns, by
  commitlog"). With three columns the difference is 0.18, and decoding alone takes 0.16. The data
  source itself adds almost nothing. A ratio of 0.85 would leave 0.22 microseconds for decoding,
  or 0.06 with three columns.
- Tags of 1 KiB messages, through Spark: the full read took 1.28 s and the read by tags 0.15 s,
  including a Spark job.
- The Spark sink, exactly once: Spark, the encoding and the store process share the same two
  cores, and the sink that does nothing already keeps them busy. At 100 B, that sink takes 0.9
  microseconds of CPU a row. In our sink, Spark takes 0.8, encoding and sending another 0.5, and
  the store 0.7. At 1 KiB the sink that does nothing takes 2.7; ours takes 2.6, 1.1 and 2.8. These
  were measured while other work ran on the machine too. A ratio of 0.7 would leave 0.5 and 1.2
  microseconds for everything but Spark. The store needs more than that. It holds each row until all
  tasks are done, because no row of a batch may be visible, or be in the log, before that. What
  exceeds `stagingMemoryBytes` it writes to a file, and reads back. The batch is on disk before the
  commit is acknowledged. A commit cannot write faster than the disk, whose rate is in the table.
  At-least-once writes need no staging. If the store process has its own cores, only the encoding
  competes with Spark.
- Bytes written to disk, at most 1.1: staging a batch within `stagingMemoryBytes` adds none, as the
  row against at-least-once shows. Both guarantees write the log, the queues and the index, because
  brokers and readers of the store need them. The row against the log counts the latter two as
  well: a queue entry of 20 bytes for each message, 20 bytes of the index for each of its two keys,
  and the hash slots of an IndexFile, 20 MB. At 100 B these are a third of the log, whatever the
  guarantee, so small messages cannot reach 1.1 there.
- One message per put under SYNC_FLUSH, waiting for each, through the store process: with 16
  clients a message takes 0.24 ms of CPU in the process and 0.18 ms in the client, and both share
  the two cores. The put itself takes 0.07 of it. The rest is gRPC, Flight, and threads that wake
  each other once per message in each direction. RocketMQ's figure is for threads in one process.
  A client with several puts in flight, or several messages in a put, spreads that cost over them,
  as the next rows of the table show.
- More than ten times RocketMQ's network producer, at 1 KiB and 4 KiB: 54,000 messages a second is
  one figure for all sizes. RocketMQ 4.9.8, compiled from its sources, with broker and producer on
  these two cores and 16 or 64 threads that send and wait, reached at best 35,000 at 100 B, 45,000
  at 1 KiB and 31,000 at 4 KiB. The sink wrote 0.66 M, 0.22 M and 0.06 M in the same hour. With
  larger bodies, copying bytes limits the sink (see above), and the number of messages limits the
  producer.
- Flight at 1 KiB and 4 KiB: three runs on one day gave 0.81, 0.58 and 0.44 of in-process at
  1 KiB, and 0.61, 0.48 and 0.46 at 4 KiB, while the disk's rate fell from 1,982 to 988 MB/s. The
  bytes pass through a socket and are copied on both sides, on the same two cores. Single puts
  that wait for each answer varied as much: 3,043, 1,071 and 2,927 a second with 16 clients.
- The store process under attack: with pyarrow's own Flight server, used before, eight clients
  without a token took 4.1 GB, 200 tasks more than 2 GB, 48 large stages 3.5 GB, and the queries
  2.96 GB. The HTTP/2 server in its place is no slower with blocks, in turns, two rounds each
  (pyarrow's in parentheses), 256 MiB in blocks of 4 MiB through a put stream gave 1.36 and 1.36 M
  messages/s at 100 B (1.27 and 0.99), 0.41 and 0.36 at 1 KiB (0.34 and 0.34), and 0.13 and 0.11 at
  4 KiB (0.09 and 0.09), with 121 MiB of memory (165). One message per put under SYNC_FLUSH,
  waiting for each: 643 and 577 messages/s with one client (524 and 661), 1,407 and 1,227 with 16
  (1,603 and 1,484): there one more thread handles each message.
- Without the compiled kernel, NumPy and Arrow build every column in several passes. This is the
  reference for the kernel's tests, and the fallback where there is no compiler.
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
        note: why there is none, or a remark.
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
