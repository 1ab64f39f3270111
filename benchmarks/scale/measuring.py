"""Measures all curves. What an interrupted run has measured is kept, and the next one continues."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from benchmarks.means.stores import Stores
from benchmarks.report.figures import Figure
from benchmarks.scale.curves import Curve
from benchmarks.scale.table import CURVES

__all__ = ["measured_figures", "scale_figures"]

_PREFIX: Final = "scale-"
_KEPT: Final = "scale.jsonl"
_KEPT_SECONDS: Final = 3600.0
"""After which what an interrupted run has measured is measured again."""


def scale_figures(stores: Stores) -> Iterator[Figure]:
    """Measure all curves."""
    yield from measured_figures(stores, CURVES)


def measured_figures(stores: Stores, curves: Sequence[Curve]) -> Iterator[Figure]:
    """Measure some curves, or take what an interrupted run has measured."""
    stores.folder.mkdir(parents=True, exist_ok=True)
    for left in stores.folder.glob(f"{_PREFIX}*"):  # by a run that was killed
        shutil.rmtree(left)
    kept = stores.folder / _KEPT
    if kept.is_file() and time.time() - kept.stat().st_mtime > _KEPT_SECONDS:
        kept.unlink()
    known = _read(kept)
    for curve in curves:
        for count in curve.counts:
            found = known.get(f"{curve.name} {count}")
            if found is None:
                found = _measured(stores.folder, curve, count)
                with kept.open("a", encoding="utf-8") as file:
                    line = [f"{curve.name} {count}", [asdict(figure) for figure in found]]
                    file.write(json.dumps(line) + "\n")
            yield from found
    kept.unlink(missing_ok=True)


def _read(kept: Path) -> dict[str, list[Figure]]:
    if not kept.is_file():
        return {}
    lines = map(json.loads, kept.read_text(encoding="utf-8").splitlines())
    return {name: [Figure(**each) for each in found] for name, found in lines}


def _measured(place: Path, curve: Curve, count: int) -> list[Figure]:
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{curve.name}-", dir=place))
    began = time.monotonic()
    try:
        return list(curve.figures(count, curve.measure(folder, count)))
    finally:
        shutil.rmtree(folder)
        took = time.monotonic() - began
        print(f"{curve.title}, {count:,}: {took:.1f} s with making and removing", flush=True)
