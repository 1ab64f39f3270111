"""Looks up many offsets at once in the stretches of the log that hold no record."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rmqstore_spark.layout.spans import I8

__all__ = ["Flaws"]


class Flaws:
    """Stretches of the log that do not overlap.

    Args:
        stretches: (from, to), in any order.
    """

    def __init__(self, stretches: Sequence[tuple[int, int]]) -> None:
        table = np.array(sorted(stretches) or [(0, 0)], np.int64)
        self._starts, self._ends = table[:, 0], table[:, 1]

    def hold(self, offsets: I8) -> npt.NDArray[np.bool_]:
        """Return which physical offsets lie in one of the stretches."""
        at = np.searchsorted(self._starts, offsets, side="right") - 1
        inside: npt.NDArray[np.bool_] = (at >= 0) & (offsets < self._ends[np.maximum(at, 0)])
        return inside
