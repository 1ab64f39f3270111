"""Say which store to open, and how: what a task needs to open it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from rmqstore_spark.errors import OptionError
from rmqstore_spark.files.open import is_endpoint

if TYPE_CHECKING:
    from rmqstore_spark.client import StoreClient
    from rmqstore_spark.datasource.pulled.queue import PulledQueue
    from rmqstore_spark.datasource.pulled.spec import BrokerSpec
    from rmqstore_spark.datasource.pulled.store import PulledStore
    from rmqstore_spark.reader.queue import Queue
    from rmqstore_spark.reader.store import Store

__all__ = [
    "AnyQueue",
    "AnySource",
    "AnyStore",
    "SourceBroker",
    "SourceStore",
    "StoreSpec",
    "different_names",
]

AnyQueue: TypeAlias = "Queue | PulledQueue"
AnyStore: TypeAlias = "Store | PulledStore"
AnySource: TypeAlias = "SourceStore | SourceBroker"


@dataclass(frozen=True)
class StoreSpec:
    """What a task needs to open a store again.

    Args:
        url: as in `Store.open`; absolute.
        broker_name: the store's broker name; None for its default.
        commitlog_paths: folders of its log, if not in the store; absolute.
        options: names and values for its file system; contains no secrets.
        spares_page_cache: whether reading leaves the page cache as it was.
        archives: its archives, read with it as one store; absolute.
    """

    url: str
    broker_name: str | None
    commitlog_paths: tuple[str, ...] | None = None
    options: tuple[tuple[str, str | float | None], ...] = ()
    spares_page_cache: bool = False
    archives: tuple[str, ...] = ()

    def with_limits(self, timeout_s: float, retries: int = 0, *, replicas: int = 1) -> StoreSpec:
        """Return the spec of a store that is soon given up, as if there is a replica of it.

        Args:
            timeout_s: most seconds that an answer may take.
            retries: how often a request is tried again.
            replicas: how many there are, which share the time for a first contact.
        """
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
    def reached(self) -> StoreSpec:
        """The same for tasks: the driver has made the first contact with the store process."""
        options = {**dict(self.options), "connect_s": None} if self.options else {}
        return replace(self, options=tuple(options.items()))

    def open_replica(self) -> Store:
        """Open the store if it answers at once, since another one can be read in its place."""
        self.check_answers()
        return self.open()

    def check_answers(self) -> None:
        """Check that the store process answers. Reading would find that out in many requests.

        Raises:
            ServiceError: it does not.
        """
        if is_endpoint(self.url):
            with self.client() as client:
                client.open(())

    def client(self) -> StoreClient:
        """Return a client of the store process at `url`."""
        from rmqstore_spark.client import StoreClient

        return StoreClient(self.url, **dict(self.options))  # type: ignore[arg-type]

    def open(self) -> Store:
        """Open the store."""
        from rmqstore_spark.files.disk.reads import PLAIN
        from rmqstore_spark.files.disk.sparing import SparingReads
        from rmqstore_spark.reader.store import Store

        return Store.open(
            self.url,
            broker_name=self.broker_name,
            commitlog_paths=self.commitlog_paths,
            archives=self.archives,
            storage_options=dict(self.options),
            reads=SparingReads() if self.spares_page_cache else PLAIN,
        )


class SourceStore(NamedTuple):
    """An open store, and what a task needs to open it again.

    Args:
        spec: how it was opened.
        store: the store.
        replicas: it and its replicas, in the user's order; empty if it has none.
    """

    spec: StoreSpec
    store: Store
    replicas: tuple[StoreSpec, ...] = ()


class SourceBroker(NamedTuple):
    """A broker that messages are pulled from, and what a task needs to ask it again.

    Its master and slaves stand in for each other in `store`, and are not replicas to choose from.
    """

    spec: BrokerSpec
    store: PulledStore


def different_names(names: Mapping[str, str]) -> OptionError:
    """Return the error for replicas of one store that report several broker names."""
    told = ", ".join(f"{place} is called {name!r}" for place, name in names.items())
    return OptionError(
        f"The replicas of a store have different broker names: {told}. Set option brokerNames to "
        "the one name under which the query reads them."
    )
