"""Find the master among the replicas of a store: it takes the writes.

Which one it is can change at any time: a slave is promoted, or a DLedger group elects another
leader. A write that meets a slave changes nothing, so it is enough to ask before each step.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from rmqstore_spark.datasource.options.connection import (
    REPLICA,
    ConnectionOptions,
    replica_endpoints,
)
from rmqstore_spark.datasource.patience import patience_s, rounds, told
from rmqstore_spark.errors import OptionError, RmqStoreError, ServiceError

_log = logging.getLogger("rmqstore_spark")

_PROBE_MS: Final = 2_000
"""A process that is stopped would be waited for otherwise, while another one leads."""


def with_masters(connection: ConnectionOptions) -> ConnectionOptions:
    """Return the options with the endpoint of its master for each store with replicas.

    Raises:
        OptionError: replicas belong to different stores.
        ServiceError: a store has no master, for as long as `requestTimeout`.
    """
    stores = connection.endpoints
    if not any(REPLICA in store for store in stores):
        return connection
    masters = tuple(find_master(connection, store) for store in stores)
    return replace(connection, endpoints=masters, replicas=stores)


def other_master(connection: ConnectionOptions, store: int) -> str | None:
    """Return the endpoint of the master of a store, if it is another one by now.

    Args:
        connection: as `with_masters` returned it.
        store: the store's number.

    Returns:
        The endpoint; None if the master is the same, or if the store has no replicas.

    Raises:
        ServiceError: it has no master, for as long as `requestTimeout`.
    """
    if not connection.replicas or REPLICA not in connection.replicas[store]:
        return None
    found = find_master(connection, connection.replicas[store])
    return None if found == connection.endpoints[store] else found


def find_master(connection: ConnectionOptions, store: str) -> str:
    """Return the endpoint of the master among replicas.

    Args:
        connection: how to connect.
        store: the endpoints of its replicas, with `REPLICA` between them.

    Raises:
        OptionError: they belong to different stores.
        ServiceError: none of them is the master, or several are, for as long as `requestTimeout`.
    """
    endpoints = replica_endpoints(store)
    if len(endpoints) == 1:
        return store
    probe = replace(connection, timeout_ms=min(connection.timeout_ms, _PROBE_MS), retries=0)
    failures: dict[str, Exception] = {}
    found: Sequence[str] = ()
    for number, _ in enumerate(rounds(patience_s(connection))):
        failures.clear()
        found = _masters(probe, endpoints, failures)
        if len(found) == 1:
            return found[0]
        if number == 1:
            _log.warning("%s Waiting until one replica of the store does.", _why(found, failures))
    remedy = (
        "Each would take other messages: stop the one that was replaced, and read docs/"
        "replication.md, A pair of store processes."
        if found
        else "Promote one of them (rmqstore promote), or start enough members of its group."
    )
    raise ServiceError(f"{_why(found, failures)} {remedy}", can_pass=True)


def _why(masters: Sequence[str], failures: Mapping[str, Exception]) -> str:
    if masters:
        return f"Several replicas of a store take writes: {', '.join(masters)}."
    return f"No replica of a store takes writes. {told(failures)}"


def _masters(
    probe: ConnectionOptions, endpoints: Iterable[str], failures: dict[str, Exception]
) -> list[str]:
    """Return those that are masters; say of the others why they are not."""
    found = []
    names: dict[str, str] = {}
    for endpoint in endpoints:
        try:
            with probe.client(endpoint) as client:
                reply = client.open(())
        except RmqStoreError as error:
            failures[endpoint] = error
            continue
        names[reply.broker_name] = endpoint
        if reply.is_master:
            found.append(endpoint)
        else:
            failures[endpoint] = ServiceError("It is a slave, or read-only")
    if len(names) > 1:
        (one, at), (other, there) = list(names.items())[:2]
        raise OptionError(
            f"Option endpoint names {at} (broker {one}) and {there} (broker {other}) as replicas "
            "of one store. Replicas have the same broker name; separate stores with commas."
        )
    return found
