"""Checks of values for keys that are texts. Each raises ValueError with a phrase."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from rmqstore_spark.layout.record.delayed import delays

_MAX_OFFSET: Final = 2**63 - 1
_MOST_LEVELS: Final = 256
_LONGEST_DELAY_MS: Final = 3650 * 86_400_000
_MOST_ADDRESSES: Final = 16
_CLUSTER: Final = re.compile(r"[%|a-zA-Z0-9_.-]{1,127}")


def address(word: str) -> str:
    """Normalize an IP address, or localhost."""
    if word.lower() == "localhost":
        return "127.0.0.1"
    try:
        return str(ipaddress.ip_address(word.removeprefix("[").removesuffix("]")))
    except ValueError:
        raise ValueError("must be an IPv4 or IPv6 address, or localhost") from None


def host_and_port(word: str) -> str:
    """Check `host:port`; "" is allowed."""
    host, separator, port = word.rpartition(":")
    if word and not (host and separator and port.isdecimal() and 0 < int(port) < 65_536):
        raise ValueError("must be host:port")
    return word


def addresses(word: str) -> str:
    """Normalize some `host:port` with `;` between; "" is allowed."""
    parts = [part.strip() for part in word.split(";") if part.strip()]
    if len(parts) > _MOST_ADDRESSES:
        raise ValueError(f"must be at most {_MOST_ADDRESSES} addresses")
    try:
        return ";".join(map(host_and_port, parts))
    except ValueError:
        raise ValueError("must be host:port, or several with ; between them") from None


def cluster(word: str) -> str:
    """Check the name of a cluster."""
    if not _CLUSTER.fullmatch(word):
        raise ValueError("must be 1 to 127 letters, digits and characters of %|_.-")
    return word


def beginning(word: str) -> str:
    """Check where an empty slave begins: earliest, latest or a physical offset."""
    if word.lower() in ("earliest", "latest"):
        return word.lower()
    if not (word.isascii() and word.isdecimal() and int(word) <= _MAX_OFFSET):
        raise ValueError("must be earliest, latest or a physical offset")
    return word


def delay_levels(word: str) -> str:
    """Check a broker's `messageDelayLevel`."""
    try:
        times = delays(word)
    except ValueError as error:
        raise ValueError(f"must be delays such as 1s 5m 2h 1d: {error}") from None
    if not 1 <= len(times) <= _MOST_LEVELS or max(times) > _LONGEST_DELAY_MS:
        raise ValueError(f"must be 1 to {_MOST_LEVELS} delays of at most 3650d")
    return " ".join(word.split())


def hours(word: str) -> str:
    """Check hours of the day with `;` between."""
    for hour in word.split(";"):
        if not hour.strip().isdecimal() or len(hour.strip()) > 2 or int(hour) > 23:
            raise ValueError("must be hours from 0 to 23, with ; between them")
    return word


def networks(word: str) -> str:
    """Normalize IP addresses and networks with commas between."""
    try:
        parts = [ipaddress.ip_network(part.strip(), strict=False) for part in word.split(",")]
    except ValueError:
        raise ValueError(
            "must be IP addresses or networks such as 10.1.2.0/24, with commas between"
        ) from None
    return ",".join(str(part) for part in parts)
