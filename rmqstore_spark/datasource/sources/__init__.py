"""The kinds of sources that a query can read. Outside this folder, all are a `Source`.

    source        `Source`: what the rest of the data source knows of each of them
    queues        chooses the queues of a query, and checks that there are any

    directory     finds the stores of option `path`
    store         finds those of option `endpoint`, and opens them through their processes;
                  `StoreSource` reads either, by its files; `store_watch` follows its queues
    name_servers  finds stores and brokers through name servers, for option `namesrvAddr`
    broker        `Broker`: pulls from a broker over its protocol, and follows its queues;
                  `pulled_store` has its topics and messages, `pulled_queue` a queue's offsets
    replicas      `Replicas`: a store with replicas, of which one is read that holds what is needed;
                  `evidence` defines that, `failover` reads on at another one in a task

A new kind of source is a class like these, and what finds it, in `_found`. Their modules are
imported when a query has such a source: Spark starts a Python process for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmqstore_spark.datasource.options.parsing import Options
    from rmqstore_spark.datasource.sources.broker import BrokerSpec
    from rmqstore_spark.datasource.sources.source import Source, SourcePartition
    from rmqstore_spark.datasource.sources.store import StoreSource, StoreSpec
    from rmqstore_spark.reader.options import Split


def open_sources(options: Options, first: int = 0, *, by_masters: bool = False) -> list[Source]:
    """Open the stores that `path` or `endpoint` names, in its order, or that name servers know.

    Args:
        options: the query's options.
        first: which replica of a store to try first, and those behind it next.
        by_masters: ask only the masters of brokers, not their slaves. Otherwise slaves are asked
            if a master does not answer for a while: they may lack the newest messages.

    Raises:
        StoreNotFoundError: a path is not a store, or nothing matches a glob.
        TopicNotFoundError: name servers know no broker with a topic.
        OptionError: `brokerNames` or `storePathCommitLog` do not match the stores.
        ReplicaError: no replica of a store can be opened.
    """
    from rmqstore_spark.datasource.sources.store import check_names

    opened: list[Source] = []
    with ExitStack() as opening:
        for found in _found(options):
            if isinstance(found, tuple):
                opened.append(_open_store(options, found, first))
            elif by_masters:
                opened.append(found.open_master())
            else:
                opened.append(found.open(patience_s=found.answer_s))
            opening.callback(opened[-1].close)
        check_names([one.url for one in opened], [one.broker_name for one in opened])
        opening.pop_all()
    return opened


def open_stores(options: Options) -> list[StoreSource]:
    """Open the stores of `path` or `endpoint`, for what needs their files."""
    from rmqstore_spark.datasource.sources.store import StoreSource

    return [one for one in open_sources(options) if isinstance(one, StoreSource)]


def _open_store(options: Options, group: Sequence[StoreSpec], first: int) -> StoreSource:
    if len(group) > 1:
        from rmqstore_spark.datasource.sources.replicas import open_replicas

        return open_replicas(options.places, group, first)
    from rmqstore_spark.datasource.sources.store import StoreSource

    return StoreSource(group[0], group[0].open())


def _found(options: Options) -> Sequence[tuple[StoreSpec, ...] | BrokerSpec]:
    """Return the stores of a query, each with its replicas, and the brokers."""
    places = options.places
    if places.name_servers:
        from rmqstore_spark.datasource.sources.name_servers import routed

        return routed(options)
    if places.connection is not None:
        from rmqstore_spark.datasource.sources.store import at_endpoints

        return at_endpoints(places.connection, places.broker_names)
    from rmqstore_spark.datasource.sources.directory import at_paths

    return at_paths(places)


def partition_of(stored: Mapping[str, Any], plan: str, splits: Sequence[Split]) -> SourcePartition:
    """Create a partition again.

    Args:
        stored: what `SourcePartition.to_json` has returned.
        plan: id of the planning.
        splits: its splits.
    """
    given = stored.get("broker") or stored["store"]
    fields = {name: _frozen(value) for name, value in given.items()}
    if "broker" in stored:
        from rmqstore_spark.client.brokers.server_group import Addresses
        from rmqstore_spark.datasource.sources.broker import BrokerSpec, PulledPartition
        from rmqstore_spark.remoting.access.identity import IdentityFiles

        fields["addresses"] = Addresses(*fields["addresses"])
        fields["identity"] = IdentityFiles(**fields["identity"])
        return PulledPartition(plan, BrokerSpec(**fields), splits)
    from rmqstore_spark.datasource.sources.store import StorePartition, spec_at

    return StorePartition(plan, spec_at(**fields), splits)


def _frozen(value: Any) -> Any:
    """Return what JSON has made of a tuple as a tuple."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
