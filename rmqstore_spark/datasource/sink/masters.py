"""The masters of the stores that a sink writes to, among the replicas that it is given."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rmqstore_spark.client.masters import PROBE_SECONDS, find_master
from rmqstore_spark.datasource.options.connection import ConnectionOptions, patience_s
from rmqstore_spark.wire.endpoint import REPLICA, replica_endpoints

_PROBE_MS: Final = round(PROBE_SECONDS * 1000)


def with_masters(connection: ConnectionOptions) -> ConnectionOptions:
    """Return the options with the endpoint of its master for each store with replicas.

    Raises:
        OptionError: replicas belong to different stores.
        ServiceError: a store has no master, for as long as `requestTimeout`.
    """
    stores = connection.endpoints
    if not any(REPLICA in store for store in stores):
        return connection
    masters = tuple(_master(connection, store) for store in stores)
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
    found = _master(connection, connection.replicas[store])
    return None if found == connection.endpoints[store] else found


def _master(connection: ConnectionOptions, store: str) -> str:
    probe = replace(connection, timeout_ms=min(connection.timeout_ms, _PROBE_MS), retries=0)
    return find_master(replica_endpoints(store), probe.client, patience_s(connection))
