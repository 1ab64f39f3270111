"""Digests tell the content of records from any other, in whatever order they come.

A digest is 32 hexadecimal digits: two sums modulo 2**64 of a hash for each record. Sums, unlike
XOR, notice records that are there twice. See docs/format.md, "A block that is not published yet".
"""

from __future__ import annotations

from typing import Final

from rmqstore_spark.layout.record.block import Block

_MASK: Final = (1 << 64) - 1


def add_up(sums: tuple[int, int], block: Block) -> tuple[int, int]:
    """Add the records of a digested block (`check_block`) to two sums, which begin as (0, 0).

    What counts of a record comes from its row: the stored body, the topic, the properties in any
    order, the flag, reconsumeTimes, and whether the body is compressed. What differs when the same
    row is written again does not count: UNIQ_KEY, queue, bornTimestamp, both hosts, and what the
    store stamps.
    """
    return (sums[0] + block.sums[0]) & _MASK, (sums[1] + block.sums[1]) & _MASK


def digest_text(sums: tuple[int, int]) -> str:
    """Return two sums as a digest."""
    return f"{sums[0]:016x}{sums[1]:016x}"
