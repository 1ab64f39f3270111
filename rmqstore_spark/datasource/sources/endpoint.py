"""A store behind a store process, which option `endpoint` names, or name servers tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rmqstore_spark.datasource.options.connection import replica_endpoints
from rmqstore_spark.datasource.sources.store import StoreSpec, check_names
from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.files.open import is_endpoint

if TYPE_CHECKING:
    from rmqstore_spark.client import StoreClient
    from rmqstore_spark.datasource.options.connection import ConnectionOptions


def at_endpoints(
    connection: ConnectionOptions, broker_names: Sequence[str] | None
) -> list[tuple[EndpointSpec, ...]]:
    """Return the stores of option `endpoint`, each with its replicas.

    Args:
        connection: has the endpoints.
        broker_names: the names of the stores; without these, they report their names.
    """
    groups = [replica_endpoints(store) for store in connection.endpoints]
    names: Sequence[str | None] = broker_names or (None,) * len(groups)
    if broker_names is not None:
        check_names(connection.endpoints, broker_names)
    return [
        tuple(EndpointSpec(one, name, options=connection.storage_options) for one in group)
        for group, name in zip(groups, names, strict=True)
    ]


@dataclass(frozen=True)
class EndpointSpec(StoreSpec):
    """What a task needs to open a store through its process again: `url` is the endpoint."""

    def with_limits(self, timeout_s: float, retries: int = 0, *, replicas: int = 1) -> EndpointSpec:
        if not self.options:
            return self
        limits = dict(self.options)
        connect_s = limits.get("connect_s")
        if isinstance(connect_s, int | float):
            limits.update(connect_s=connect_s / replicas)
        given = limits.get("timeout_s")
        least = timeout_s if not isinstance(given, int | float) else min(timeout_s, given)
        limits.update(timeout_s=least, retries=retries)
        return replace(self, options=tuple(limits.items()))

    @property
    def reached(self) -> EndpointSpec:
        options = {**dict(self.options), "connect_s": None} if self.options else {}
        return replace(self, options=tuple(options.items()))

    def check_answers(self) -> None:
        with self.client() as client:
            client.open(())

    def client(self) -> StoreClient:
        from rmqstore_spark.client import StoreClient

        return StoreClient(self.url, **dict(self.options))  # type: ignore[arg-type]

    def explain(self, error: RmqStoreError) -> None:
        del error  # it is not that of a file which only others see


def spec_at(url: str, *fields: Any, **more: Any) -> StoreSpec:
    """Return the spec of the store at a URL, with these fields."""
    return (EndpointSpec if is_endpoint(url) else StoreSpec)(url, *fields, **more)
