"""Plays many seeds, and counts what happened."""

from __future__ import annotations

import gc
import zlib
from typing import Final, NamedTuple

from tests.consensus.runs import run

_CIRCLES: Final = 250
"""Runs after which the circles of objects that each leaves are freed."""


class Played(NamedTuple):
    """What the runs of some seeds did together.

    Attributes:
        failed: seeds that broke a promise, and which.
        trace: a checksum of what each run wrote, committed and acknowledged, when and where.
    """

    runs: int
    elections: int
    crashes: int
    acknowledged: int
    failed: list[tuple[int, str]]
    trace: int


def play(seeds: range) -> Played:
    """Play each seed."""
    elections = crashes = acknowledged = trace = 0
    failed = []
    gc.disable()
    try:
        for count, seed in enumerate(seeds, 1):
            try:
                checks = run(seed)
            except AssertionError as error:
                failed.append((seed, str(error)))
            else:
                elections += checks.elections
                crashes += checks.crashes
                acknowledged += len(checks.acknowledged)
                trace = zlib.crc32(repr(checks).encode(), trace)
            if count % _CIRCLES == 0:
                gc.collect()
    finally:
        gc.enable()
    return Played(len(seeds), elections, crashes, acknowledged, failed, trace)
