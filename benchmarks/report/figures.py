"""What was measured, as a table on the terminal, and on which machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

import rmqstore_spark

__all__ = ["Figure", "machine", "met", "print_table", "ratio_cells", "spread"]

_HEADINGS: Final = ("figure", "value", "against", "value", "ratio", "aim", "met")


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


def met(is_met: bool) -> str:
    """Return what the table says of an aim."""
    return "yes" if is_met else "no"


def ratio_cells(
    ratio: float, at_least: float | None = None, at_most: float | None = None
) -> tuple[str, str, str]:
    """Return the cells `ratio`, `aim` and `met` of a comparison with at most one aim.

    A ratio that is short of its aim, and equals it when it is rounded, gets a third decimal.
    """
    if at_least is not None:
        aim, bound, is_met = f"{at_least:g}", at_least, ratio >= at_least
    elif at_most is not None:
        aim, bound, is_met = f"at most {at_most:g}", at_most, ratio <= at_most
    else:
        return f"{ratio:.2f}", "", ""
    hides = not is_met and f"{ratio:.2f}" == f"{bound:.2f}"
    return f"{ratio:.{3 if hides else 2}f}", aim, met(is_met)


def spread(values: Sequence[float]) -> str:
    """Return the lowest and the highest of some ratios."""
    return f"{min(values):.2f} to {max(values):.2f}"


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


def _kernel(release: str) -> str:
    """The first two numbers of a kernel's release; what follows is whose build it is."""
    return ".".join(release.split(".")[:2])


def machine() -> str:
    """Return when, and on what, as `2026-11-25; 2 x AMD EPYC, 24 GiB; Linux ...`."""
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
        f"rmqstore-spark {rmqstore_spark.__version__}"
    )
