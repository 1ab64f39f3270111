r"""The flush mark: the physical offset up to which the log of a store is known to be on disk.

    STORE/rmqstore/flushed: "{physical offset} {bytes of a segment} {CRC32 of both}\n", with 20, 20
    and 10 decimal digits

Our writer rewrites it in place after each flush of the log, and does not flush it. So after a kill
it is exact, and after a power cut it is older, never ahead. A log that ends before it has lost
messages that were on disk. See docs/format.md, "Start, recovery".
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import Final

FLUSH_MARK_SIZE: Final = 53
_FORM: Final = re.compile(rb"(\d{20} \d{20}) (\d{10})\n")


@dataclass(frozen=True)
class FlushMark:
    """A flush mark.

    Attributes:
        offset: physical offset up to which the log is on disk.
        segment_size: bytes of a segment.
    """

    offset: int
    segment_size: int

    @classmethod
    def decode(cls, data: bytes) -> FlushMark | None:
        """Return the mark; None if the bytes are not one."""
        found = _FORM.fullmatch(data)
        if found is None or zlib.crc32(found[1]) != int(found[2]):
            return None
        offset, size = map(int, found[1].split())
        return cls(offset, size)

    def encode(self) -> bytes:
        """Return the file's bytes."""
        numbers = b"%020d %020d" % (self.offset, self.segment_size)
        return b"%b %010d\n" % (numbers, zlib.crc32(numbers))
