"""Where a job reads and writes: its arguments STORE and ENDPOINT, as options."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["place_option"]

_NAME_SERVERS: Final = re.compile(r"\s*namesrv://(.*)", re.IGNORECASE | re.DOTALL)
_ENDPOINT: Final = re.compile(r"\s*grpc(\+\w+)?://", re.IGNORECASE)


def place_option(text: str, *, otherwise: str) -> tuple[str, str]:
    """Return the name and the value of the option that an argument stands for.

    Args:
        text: `namesrv://HOST:PORT`, several with `;` between; endpoints; or anything else.
        otherwise: the option for anything else.
    """
    found = _NAME_SERVERS.fullmatch(text)
    if found is not None:
        return "namesrvAddr", found[1]
    return "endpoint" if _ENDPOINT.match(text) else otherwise, text
