"""Fills in the columns of records that messages lack, such as the address of this machine."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout.hosts import same_host
from rmqstore_spark.layout.record.encode import RECORD_COLUMNS

_NEEDED: Final = frozenset({"topic", "body"})
_OF_STORE: Final = frozenset({"queueOffset", "physicalOffset", "storeTimestamp", "storeHost"})
_ROUTES: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses for documentation (RFC 5737, RFC 3849): no packet is ever sent to them."""


@dataclass(frozen=True)
class Origin:
    """When and where messages without a birth time or host were created.

    Attributes:
        time: bornTimestamp, milliseconds.
        host: bornHost, `ip:port` or `[ip]:port`.
    """

    time: int
    host: str


def record_batch(given: Mapping[str, pa.Array], origin: Origin, store_host: str) -> pa.RecordBatch:
    """Return messages with all columns of a record, the input of `encode_records`.

    Args:
        given: topic and body, and any other RECORD_COLUMNS but those that the store sets; in their
            types, without nulls. Hosts may be dictionary-encoded.
        origin: defaults of bornTimestamp and bornHost.
        store_host: storeHost. The other columns that the store sets are 0.
    """
    count = len(given["body"])
    hosts = {"bornHost": origin.host, "storeHost": store_host}
    zeros = {pa.int32(): np.zeros(count, np.int32), pa.int64(): np.zeros(count, np.int64)}
    arrays = []
    for name, kind in RECORD_COLUMNS.items():
        if name in given:
            arrays.append(given[name])
        elif name in hosts:
            arrays.append(same_host(hosts[name], count))
        elif name == "bornTimestamp":
            arrays.append(pa.array(np.full(count, origin.time, np.int64)))
        elif name == "properties":
            arrays.append(pa.repeat(pa.scalar(b"", kind), count))
        else:
            arrays.append(pa.array(zeros[kind]))
    return pa.RecordBatch.from_arrays(arrays, names=list(RECORD_COLUMNS))


def record_columns(batch: pa.RecordBatch, now: int, host: str) -> pa.RecordBatch:
    """Check columns that a program made, and return them with all columns of a record.

    Args:
        batch: some of RECORD_COLUMNS, without nulls; topic and body are required. Columns that the
            store sets (offsets, storeTimestamp, storeHost) are ignored.
        now: default of bornTimestamp, milliseconds.
        host: default of bornHost; and storeHost.

    Raises:
        OptionError: a column is missing or unknown, or holds an invalid value.
    """
    names = set(batch.schema.names)
    if missing := sorted(_NEEDED - names):
        raise OptionError(f"A batch of messages has no column {', '.join(missing)}.")
    if unknown := sorted(names - set(RECORD_COLUMNS)):
        known = ", ".join(RECORD_COLUMNS)
        raise OptionError(
            f"A batch of messages has the unknown column {', '.join(unknown)}. Known "
            f"columns: {known}."
        )
    given = {
        name: _checked(name, column)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if name not in _OF_STORE
    }
    return record_batch(given, Origin(now, host), host)


def _checked(name: str, column: pa.Array) -> pa.Array:
    kind = RECORD_COLUMNS[name]
    if column.null_count:
        raise OptionError(f"The column {name} has {column.null_count} nulls.")
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise OptionError(f"The column {name} is not of type {kind}: {error}.") from error


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
