"""The addresses in new messages."""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

_ROUTES: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses for documentation (RFC 5737, RFC 3849): no packet is ever sent to them."""


def own_address() -> bytes | None:
    """Return the source address of this machine's packets, IPv4 before IPv6; None without one."""
    for family, anywhere in _ROUTES:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((anywhere, 9))  # chooses a route; a datagram socket sends nothing
                return socket.inet_pton(family, probe.getsockname()[0])
        except OSError:
            continue
    return None


def born_host(address: bytes | None) -> str:
    """Return an address as bornHost; the port is unknown, so it is 0.

    Args:
        address: 4 or 16 bytes. None if the machine has no address: bornHost is then the unknown
            address. The loopback address would claim that the message comes from the host of the
            store.
    """
    if address is None:
        return unknown_host(v6=False)
    text = str(ipaddress.ip_address(address))
    return f"{text}:0" if len(address) == ipaddress.IPV4LENGTH // 8 else f"[{text}]:0"


def unknown_host(*, v6: bool) -> str:
    """Return the host that stands for an unknown one, of a family."""
    return "[::]:0" if v6 else "0.0.0.0:0"
