"""Addresses as `host:port`."""

from __future__ import annotations

import re
from typing import Final

from rmqstore_spark.errors import ServiceError

__all__ = ["address_text", "parse_address"]

_PORT: Final = re.compile("[0-9]{1,5}")


def address_text(address: object) -> str:
    """Return a socket's address as `host:port`."""
    if isinstance(address, tuple) and len(address) >= 2:
        host = f"[{address[0]}]" if ":" in str(address[0]) else address[0]
        return f"{host}:{address[1]}"
    return str(address or "an unknown address")


def parse_address(address: str) -> tuple[str, int]:
    """Split `host:port`; the host may be an IPv6 address in brackets.

    Raises:
        ServiceError: it is not an address.
    """
    host, _, port = address.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (_can_be_looked_up(host) and _PORT.fullmatch(port) and 0 < int(port) < 1 << 16):
        raise ServiceError(f"{address_text(address)!r} is not an address; use HOST:PORT.")
    return host, int(port)


def _can_be_looked_up(host: str) -> bool:
    """Return whether a resolver would take it: labels of names have a length."""
    try:
        return bool(host.encode("idna"))
    except UnicodeError:
        return False
