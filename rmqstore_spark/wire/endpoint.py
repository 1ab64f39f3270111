"""Parses the endpoints of store processes, such as `rmq://host:port`.

A process that serves several stores has an endpoint for each: `rmq://host:port#name`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

from rmqstore_spark.errors import OptionError

TCP: Final = "rmq"
TLS: Final = "rmqs"
UNIX: Final = "unix"
REPLICA: Final = "|"
"""Separates the replicas of one store."""

_BETWEEN: Final = re.compile(r"\|(?=\s*(?:rmqs?://|unix:))", re.IGNORECASE)
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})

_ADDRESS: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\s:/@\[\]?#]+)):([0-9]{1,5})/?")
_MAX_SOCKET_PATH: Final = 107  # sockaddr_un.sun_path, without its terminating zero
_STORE: Final = re.compile(r"[A-Za-z0-9._%|-]{1,127}")
_FORMS: Final = (
    "rmq://HOST:PORT, rmqs://HOST:PORT (TLS) or unix:/PATH, with #NAME for one of several stores"
)


@dataclass(frozen=True)
class Endpoint:
    """An address of a store process, and which of its stores is meant.

    Attributes:
        scheme: TCP, TLS or UNIX.
        host: name or address, IPv6 without brackets; empty for a unix socket.
        port: 1 to 65535; 0 for a unix socket.
        path: absolute path of a unix socket; empty otherwise.
        store: name of a store; empty for the only one.
    """

    scheme: Literal["rmq", "rmqs", "unix"]
    host: str = ""
    port: int = 0
    path: str = ""
    store: str = ""

    def __str__(self) -> str:
        return f"{self.address}#{self.store}" if self.store else self.address

    @property
    def address(self) -> str:
        """The address alone."""
        if self.scheme == UNIX:
            return f"{UNIX}:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def can_be_overheard(self) -> bool:
        """Whether what goes there leaves this machine unencrypted."""
        return self.scheme == TCP and self.host not in _LOOPBACK


def is_store_name(text: str) -> bool:
    """Return whether an endpoint can name a store so."""
    return _STORE.fullmatch(text) is not None


def parse_endpoint(text: str) -> Endpoint:
    """Parse an endpoint.

    Raises:
        OptionError: the text is not an endpoint; the message lists the valid forms.
    """
    if _BETWEEN.search(text):
        raise _wrong(text, "it names replicas of a store, and one of them is needed")
    address, mark, store = text.strip().partition("#")
    if mark and not is_store_name(store):
        raise _wrong(text, "the name of a store has 1 to 127 letters, digits and . _ - % |")
    return replace(_address(address, text), store=store)


def _address(address: str, text: str) -> Endpoint:
    scheme, separator, rest = address.partition(":")
    scheme = scheme.lower()
    if separator and scheme == UNIX:
        rest = rest.removeprefix("//")
        if not rest.startswith("/") or "\0" in rest or rest.endswith("/"):
            raise _wrong(text, "a unix socket needs an absolute path")
        if len(rest.encode("utf-8", "surrogateescape")) > _MAX_SOCKET_PATH:
            raise _wrong(text, f"the path of a unix socket has at most {_MAX_SOCKET_PATH} bytes")
        return Endpoint(UNIX, path=rest)
    if scheme in (TCP, TLS) and rest.startswith("//"):
        rest = rest[2:]
        is_plain = rest.isascii() and rest.isprintable()
        match = _ADDRESS.fullmatch(rest) if is_plain else None
        if match is None:
            raise _wrong(text, "it has no host and port")
        port = int(match[3])
        if not 0 < port < 1 << 16:
            raise _wrong(text, "a port is 1 to 65535")
        return Endpoint(TCP if scheme == TCP else TLS, match[1] or match[2], port)
    if _ADDRESS.fullmatch(address):
        raise _wrong(text, "it lacks the scheme rmq://")
    raise _wrong(text, "its scheme is unknown" if rest.startswith("//") else "it is a path")


def parse_endpoints(text: str) -> tuple[Endpoint, ...]:
    """Parse a comma-separated list of endpoints of different stores.

    Raises:
        OptionError: one of them is invalid or occurs twice, or the list is empty.
    """
    return _distinct(text.split(","), "Name each store once.")


def parse_replicas(text: str) -> tuple[Endpoint, ...]:
    """Parse the endpoints of the replicas of one store, with `REPLICA` between them.

    Raises:
        OptionError: one of them is invalid or occurs twice.
    """
    return _distinct(replica_endpoints(text), "Name each replica once.")


def replica_endpoints(text: str) -> list[str]:
    """Return the endpoints of the replicas of one store; its name may contain `|`."""
    return _BETWEEN.split(text)


def _distinct(texts: Iterable[str], remedy: str) -> tuple[Endpoint, ...]:
    found = tuple(map(parse_endpoint, texts))
    for number, endpoint in enumerate(found):
        if endpoint in found[:number]:
            raise OptionError(f"The endpoint {endpoint} is given twice. {remedy}")
    return found


def announced_endpoint(endpoints: Iterable[Endpoint], address: str) -> str:
    """Return the endpoint that a store process announces to name servers.

    Args:
        endpoints: where it serves.
        address: the IP address at which clients find its broker (`brokerIP1`).

    Returns:
        The endpoint; "" if other machines, which know that address, cannot reach one.
    """
    for endpoint in endpoints:
        if endpoint.scheme == UNIX:
            continue
        bound = ipaddress.ip_address(endpoint.host)
        if bound.is_unspecified:
            return str(replace(endpoint, host=address))
        if not bound.is_loopback or ipaddress.ip_address(address).is_loopback:
            return str(endpoint)
    return ""


def endpoint_announced(texts: Iterable[str]) -> str:
    """Return the endpoint among the filter servers that a broker registered; "" if there is none.

    What is not the address of a store process on a network is passed over: the texts come from a
    name server, and a path on this machine would be none of its business.
    """
    for text in texts:
        try:
            found = parse_endpoint(text)
        except OptionError:
            continue
        if found.scheme != UNIX:
            return str(found)
    return ""


def _wrong(text: str, why: str) -> OptionError:
    return OptionError(f"{text!r} is not an endpoint of a store process: {why}. Use {_FORMS}.")
