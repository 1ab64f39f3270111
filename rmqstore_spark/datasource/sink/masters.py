"""The masters of the stores that a sink writes to, among the replicas that it is given."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from rmqstore_spark.client.masters import PROBE_SECONDS, find_master
from rmqstore_spark.datasource.options.connection import ConnectionOptions, patience_s
from rmqstore_spark.errors import RefusedError, ServiceError
from rmqstore_spark.wire.endpoint import REPLICA, replica_endpoints

if TYPE_CHECKING:
    from rmqstore_spark.client import StoreClient

_log = logging.getLogger("rmqstore_spark")

_T = TypeVar("_T")

_RETRIES_OF_A_REPLICA: Final = 3
"""At a master that may have been replaced."""

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


def at_master(connection: ConnectionOptions, store: int, act: Callable[[StoreClient], _T]) -> _T:
    """Do something at the master of a store; if that changed meanwhile, do it at the new one.

    Args:
        connection: as `with_masters` returned it.
        store: the store's number.
        act: may run twice.

    Raises:
        RefusedError: the master refuses.
        ServiceError: it cannot be reached, or there is none for as long as `requestTimeout`.
    """
    hurried = connection
    if connection.replicas:
        hurried = replace(connection, retries=min(connection.retries, _RETRIES_OF_A_REPLICA))
    try:
        with hurried.client(connection.endpoints[store]) as client:
            return act(client)
    except (RefusedError, ServiceError) as error:
        other = _other_master(connection, store)
        if other is None:
            raise
        _log.warning("%s Asking the new master, %s.", error, other)
    with connection.client(other) as client:
        return act(client)


def _other_master(connection: ConnectionOptions, store: int) -> str | None:
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
