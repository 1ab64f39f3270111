"""Encode hosts, `ip:port` texts, as the 8 or 20 bytes of a record, for whole columns."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmqstore_spark.errors import OptionError

_PORT: Final = 2
"""Bytes of a port, out of the four that a record has for it."""
_KNOWN: Final = 4096


@lru_cache(_KNOWN)  # messages that come one by one name the same clients again and again
def encode_host(text: str) -> bytes:
    """Return the address and 4-byte port of `ip:port` or `[ip]:port`.

    Raises:
        OptionError: the text is neither.
    """
    address, _, port = text.rpartition(":")
    try:
        ip = ipaddress.ip_address(address.removeprefix("[").removesuffix("]"))
        return ip.packed + int(port).to_bytes(_PORT, "big").rjust(4, b"\0")
    except (ValueError, OverflowError):
        raise OptionError(
            f"{text!r} is not a host: use ip:port, or [ip]:port for IPv6, with a port up to 65535."
        ) from None


def same_host(text: str, count: int) -> pa.DictionaryArray:
    """Return a column with the same host in every row."""
    return pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), [text])


def encode_hosts(
    *columns: pa.StringArray | pa.DictionaryArray,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], list[npt.NDArray[np.int32]]]:
    """Encode columns of hosts.

    Args:
        columns: n texts each, without nulls; dictionary-encoded columns are fastest.

    Returns:
        k hosts as (k, 20) uint8, zero-padded after the 8 bytes of an IPv4 host; whether
        each of the k is IPv6; and for each column, the number of each row's host, n.

    Raises:
        OptionError: a text is not a host.
    """
    coded = [column.dictionary_encode() for column in columns]
    packed = [encode_host(text) for column in coded for text in column.dictionary.to_pylist()]
    table = np.frombuffer(b"".join(p.ljust(20, b"\0") for p in packed), np.uint8).reshape(-1, 20)
    wide = np.array([len(p) == 20 for p in packed], np.uint8)
    first = np.cumsum([0, *(len(column.dictionary) for column in coded)], dtype=np.int32)
    codes = [
        column.indices.to_numpy().astype(np.int32) + at
        for column, at in zip(coded, first, strict=False)
    ]
    return table, wide, codes
