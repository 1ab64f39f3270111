"""Parses sizes in bytes."""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_bytes(text: str) -> int:
    """Parse a size such as `64k`, `256m`, `1gb` or a plain number of bytes.

    Raises:
        ValueError: the text is not a size; the message follows the name of an option.
    """
    match = re.fullmatch(r"([0-9]{1,18})\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if not match:
        raise ValueError("must be a size such as 64k, 256m or 1g")
    return int(match[1]) * _UNITS[match[2]]
