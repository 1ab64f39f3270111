"""Addresses as `host:port`, and the ports of this machine."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
from typing import Final

from rmqstore_spark.errors import ServiceError

BACKLOG: Final = 1024
_MAPPED: Final = "::ffff:"
_PORT: Final = re.compile("[0-9]{1,5}")
_LOOPBACK_NAMES: Final = frozenset({"localhost", "localhost.localdomain"})


def address_text(address: object) -> str:
    """Return a socket's address as `host:port`; one of IPv4 is shown so on a port of IPv6."""
    if isinstance(address, tuple) and len(address) >= 2:
        host, port = str(address[0]), address[1]
        if "." in host:
            host = host.removeprefix(_MAPPED)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
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


def means_this_machine(host: str) -> bool:
    """Return whether a host, name or IP address, is the machine of a client that connects."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() in _LOOPBACK_NAMES
    return address.is_loopback or address.is_unspecified


def bound_port(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to a port, and does not listen yet.

    Args:
        host: an IP address of this machine.
        port: the port; 0 for any free one.

    Raises:
        ServiceError: another process, or a connection, has the port, or it is not for this process.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if port:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        # Not before: two that do not listen yet could get the same free port. It lets a process
        # that comes back take the port over from connections of the former one.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError as error:
        bound.close()
        raise _taken(error, (host, port)) from None
    return bound


def why_not_bound(error: OSError) -> str:
    """Return why a port cannot be had."""
    if error.errno == errno.EADDRINUSE:
        return (
            "another process listens there already, or an outgoing connection has the port, for up "
            "to a minute after its end (`ss -tanp` shows which)"
        )
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)


def listen(bound: socket.socket) -> None:
    """Let a bound socket listen.

    Raises:
        ServiceError: another process was faster.
    """
    try:
        bound.listen(BACKLOG)
    except OSError as error:
        raise _taken(error, bound.getsockname()) from None


def _taken(error: OSError, address: object) -> ServiceError:
    return ServiceError(
        f"Nothing can listen on {address_text(address)}: {why_not_bound(error)}. Choose an address "
        "of this machine and a port that no other process uses; 0 takes any free one."
    )


def _can_be_looked_up(host: str) -> bool:
    """Return whether a resolver would take it: labels of names have a length, and no NUL."""
    try:
        return bool(host.isprintable() and host.encode("idna"))
    except UnicodeError:
        return False
