"""Does what a page asks its reader for, in a fresh folder."""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Final

from tests.pipelines.processes import ROOT, environment
from tests.support.processes.ports import free_port
from tests.support.processes.surroundings import path_with_quick_workers
from tests.tutorials.page import Commands, read_page
from tests.tutorials.terminal import Terminal

__all__ = ["follow"]

_NEAR: Final = 2
"""How far apart the ports of one process are: a broker's is between that of old clients, two below,
and that of slaves."""


def follow(path: Path, folder: Path) -> Path:
    """Do what a page asks for, and compare what is printed with what it shows.

    Args:
        path: the page.
        folder: an empty folder.

    Returns:
        The folder in which its reader has worked.
    """
    page = read_page(path)
    work = folder / "work"
    work.mkdir()
    ours = {
        **environment(),
        "COLUMNS": "100",
        "EXAMPLES": str(ROOT / "examples"),
        "HOME": str(folder),  # pyiceberg has settings there, RocketMQ's client its log
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "PYTHONPATH": os.pathsep.join((path_with_quick_workers(), str(ROOT))),
    }
    with Terminal(work, page.folder, _free_ports(page.ports), ours) as terminal:
        for step in page.steps:
            if isinstance(step, Commands):
                terminal.run(step.text, step.exit_code, step.output, step.varies)
            else:
                terminal.save(step.name, step.text)
        terminal.all_ended()
    return work


def _free_ports(wanted: tuple[int, ...]) -> dict[int, int]:
    """Return a free port for each; those of one process keep their distances."""
    groups = [list(wanted[:1])]
    for before, port in pairwise(wanted):
        if port - before > _NEAR:
            groups.append([])
        groups[-1].append(port)
    found: dict[int, int] = {}
    for first, *others in filter(None, groups):
        free = free_port((-_NEAR, *(each - first for each in others)))
        found |= {port: free + port - first for port in (first, *others)}
    return found
