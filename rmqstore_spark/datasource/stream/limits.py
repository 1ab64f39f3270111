"""Divide a micro-batch's limit among the queues."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["rows_within", "share"]


def share(backlogs: Sequence[int], limit: int) -> list[int]:
    """Divide a limit in proportion to the backlogs.

    Each queue with a backlog gets at least one, so that large queues do not starve small ones. With
    more such queues than the limit, the sum exceeds it. Otherwise the sum is the limit or, if less,
    the sum of the backlogs. The same input gives the same shares.

    Args:
        backlogs: the backlog of each queue, 0 or more.
        limit: 1 or more.

    Returns:
        The share of each queue, at most its backlog.
    """
    waiting = [number for number, backlog in enumerate(backlogs) if backlog]
    total = sum(backlogs)
    if total <= limit:
        return list(backlogs)
    shares = [min(1, backlog) for backlog in backlogs]
    spare, behind = limit - len(waiting), total - len(waiting)
    if spare <= 0:
        return shares
    for number in waiting:
        shares[number] += (backlogs[number] - 1) * spare // behind
    # The remainder of rounding goes to the queues that lost most by it.
    left = limit - sum(shares)
    for number in sorted(waiting, key=lambda n: (-((backlogs[n] - 1) * spare % behind), n))[:left]:
        shares[number] += 1
    return shares


def rows_within(sizes: npt.NDArray[np.int32], budget: int, least: int = 1) -> int:
    """Count the entries, from the first on, that fit into a number of bytes.

    Args:
        sizes: i4[n], n > 0, bytes of each entry's record.
        budget: bytes.
        least: the minimum result.
    """
    ends = np.cumsum(np.maximum(sizes, 0), dtype=np.int64)
    return max(least, int(np.searchsorted(ends, budget, side="right")))
