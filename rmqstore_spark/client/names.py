"""Look up the name of a host in limited time: the resolver of the system has no time limit."""

from __future__ import annotations

import ipaddress
import socket
import threading
from typing import Any, TypeAlias

Place: TypeAlias = tuple[Any, Any, int, str, Any]
"""As `socket.getaddrinfo` returns it: family, type, protocol, name, address."""


def looked_up(host: str, port: int, seconds: float) -> list[Place]:
    """Return the places of a host.

    Args:
        host: its name, or an address.
        port: of the server.
        seconds: how long it may take; a search that takes longer ends by itself.

    Raises:
        OSError: nobody knows the name, or the name servers (DNS) do not answer in time.
    """
    if _is_address(host):  # nobody is asked, so no thread is needed
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    found: list[list[Place]] = []
    failed: list[OSError] = []

    def look() -> None:
        try:
            found.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            failed.append(error)
        except UnicodeError as error:
            failed.append(OSError(f"{host!r} is not a name: {error}"))

    thread = threading.Thread(target=look, name="rmqstore-look-up", daemon=True)
    thread.start()
    thread.join(max(seconds, 0.0))
    if failed:
        raise failed[0]
    if not found:
        raise TimeoutError(f"the name {host} could not be looked up in time")
    return found[0]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
