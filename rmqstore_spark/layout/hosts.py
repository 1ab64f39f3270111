"""Hosts: `ip:port` texts to the 8 or 20 bytes that a record holds, whole columns at a time."""

from __future__ import annotations

import ipaddress

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmqstore_spark.errors import OptionError

__all__ = ["encode_host", "encode_hosts"]


def encode_host(text: str) -> bytes:
    """Address and 4-byte port of `ip:port` or `[ip]:port`.

    Raises:
        OptionError: the text is neither.
    """
    address, _, port = text.rpartition(":")
    try:
        ip = ipaddress.ip_address(address.removeprefix("[").removesuffix("]"))
        return ip.packed + int(port).to_bytes(4, "big", signed=True)
    except (ValueError, OverflowError):
        raise OptionError(f"{text!r} is no host: write ip:port, or [ip]:port for IPv6.") from None


def encode_hosts(hosts: pa.StringArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Encode a column of hosts.

    Args:
        hosts: n texts without nulls.

    Returns:
        (n, 20) uint8, zero-padded behind the 8 bytes of an IPv4 host, and n bools: is IPv6.

    Raises:
        OptionError: one of the texts is no host.
    """
    coded = hosts.dictionary_encode()
    packed = [encode_host(text) for text in coded.dictionary.to_pylist()]
    table = np.frombuffer(b"".join(p.ljust(20, b"\0") for p in packed), np.uint8).reshape(-1, 20)
    wide = np.array([len(p) == 20 for p in packed], np.bool_)
    rows = coded.indices.to_numpy()
    return table[rows], wide[rows]
