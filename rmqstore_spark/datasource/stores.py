"""Open the stores of a query, and choose their queues."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from rmqstore_spark.datasource.failures import some
from rmqstore_spark.datasource.offsets import QueueKey
from rmqstore_spark.datasource.opening import open_first
from rmqstore_spark.datasource.options.connection import REPLICA, replica_endpoints
from rmqstore_spark.datasource.options.parsing import Options
from rmqstore_spark.datasource.options.table import PlaceOptions, QueueOptions
from rmqstore_spark.datasource.pulled.spec import BrokerSpec
from rmqstore_spark.datasource.routes import routed
from rmqstore_spark.datasource.spec import (
    AnyQueue,
    AnySource,
    AnyStore,
    SourceBroker,
    StoreSpec,
    different_names,
)
from rmqstore_spark.errors import OptionError, StoreNotFoundError, TopicNotFoundError

if TYPE_CHECKING:
    from rmqstore_spark.datasource.options.connection import ConnectionOptions
    from rmqstore_spark.reader.store import Store, Topic

__all__ = [
    "ChosenQueue",
    "check_pattern",
    "check_topics",
    "chosen_names",
    "chosen_queues",
    "most_replicas",
    "open_stores",
]


class ChosenQueue(NamedTuple):
    """A queue that the query reads."""

    key: QueueKey
    store: AnyStore
    queue: AnyQueue


def open_stores(options: Options, first: int = 0, *, by_masters: bool = False) -> list[AnySource]:
    """Open the stores that `path` or `endpoint` names, in its order, or those of a route.

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
    opened: list[AnySource] = []
    with ExitStack() as opening:
        for group in _groups(options):
            if not isinstance(group, BrokerSpec):
                opened.append(open_first(options.places, group, first))
            elif by_masters:
                opened.append(SourceBroker(group, group.master.open()))
            else:
                opened.append(SourceBroker(group, group.open(patience_s=group.answer_s)))
            opening.callback(opened[-1].store.close)
        found = [of.store.broker_name for of in opened]
        _check_names([of.spec.url for of in opened], found)
        opening.pop_all()
    return opened


def most_replicas(options: Options) -> int:
    """Return how many replicas a store of the query has at most; 0 if none has any."""
    places = options.places
    urls = places.connection.endpoints if places.connection else places.paths
    if not places.name_servers and not any(REPLICA in url for url in urls):
        return 0  # without a look at the stores
    most = max(1 if isinstance(of, BrokerSpec) else len(of) for of in _groups(options))
    return most if most > 1 else 0


def _groups(options: Options) -> Sequence[tuple[StoreSpec, ...] | BrokerSpec]:
    """Return the stores of a query, each with its replicas, and the brokers."""
    places = options.places
    if places.name_servers:
        return routed(options)
    if places.connection is not None:
        return _served(places.connection, places.broker_names)
    return _at_paths(places)


def _at_paths(places: PlaceOptions) -> list[tuple[StoreSpec, ...]]:
    """Return the stores of `path`, each with its replicas."""
    groups = [group for path in places.paths for group in _replica_paths(path)]
    paths = [path for group in groups for path in group]
    archives = _archives(paths) if len(paths) > 1 else {}
    joined = {archive for of_store in archives.values() for archive in of_store}
    groups = [left for group in groups if (left := [p for p in group if p not in joined])]
    names = places.broker_names or [_common_name(group) for group in groups]
    _check_names([group[0] for group in groups], names)
    if places.commitlog_paths is not None and any(len(group) > 1 for group in groups):
        raise OptionError(
            "Option storePathCommitLog does not work for a store with replicas. Read it through "
            "the endpoints of store processes."
        )
    folders = _commitlog_folders(places.commitlog_paths, names)
    return [
        tuple(
            StoreSpec(
                path,
                name,
                folders.get(name),
                spares_page_cache=places.spares_page_cache,
                archives=archives.get(path, ()),
            )
            for path in group
        )
        for group, name in zip(groups, names, strict=True)
    ]


def _replica_paths(path: str) -> list[list[str]]:
    """Return the stores that one part of `path` names, each as a list of its replicas."""
    if REPLICA not in path or os.path.exists(_absolute(path)):
        return [[found] for found in _expand(path)]
    group = [found for one in path.split(REPLICA) for found in _expand(one.strip())]
    if len(set(group)) < len(group) or len(group) != path.count(REPLICA) + 1:
        raise OptionError(
            f"Option path: {path!r} must name each replica of the store once, and without patterns."
        )
    return [group]


def _common_name(group: Sequence[str]) -> str:
    from rmqstore_spark.reader.store import default_broker_name

    names = [default_broker_name(path) for path in group]
    if len(set(names)) > 1:
        raise different_names(dict(zip(group, names, strict=True)))
    return names[0]


def _archives(paths: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the archives of each store, if the query reads both."""
    from rmqstore_spark.files.joined import archived_store, store_id_at
    from rmqstore_spark.files.open import open_files

    found: dict[str, list[str]] = {}
    for path in paths:
        of_store = archived_store(*open_files(path))
        if of_store is not None:
            found.setdefault(of_store, []).append(path)
    ids = {store_id_at(*open_files(path)): path for path in paths} if found else {}
    return {ids[one]: tuple(archives) for one, archives in found.items() if one in ids}


def _served(
    connection: ConnectionOptions, broker_names: Sequence[str] | None
) -> list[tuple[StoreSpec, ...]]:
    """Return the stores behind some endpoints; without `brokerNames`, they report their names."""
    groups = [replica_endpoints(store) for store in connection.endpoints]
    names: Sequence[str | None] = broker_names or (None,) * len(groups)
    if broker_names is not None:
        _check_names(connection.endpoints, broker_names)
    return [
        tuple(StoreSpec(one, name, options=connection.storage_options) for one in group)
        for group, name in zip(groups, names, strict=True)
    ]


def _check_names(paths: Sequence[str], names: Sequence[str]) -> None:
    """Refuse names that do not match the stores."""
    if len(names) != len(paths):
        raise OptionError(
            f"Option brokerNames has {len(names)} names for {len(paths)} stores: {some(paths)}. "
            "List one name for each, in this order."
        )
    by_name: dict[str, str] = {}
    for path, name in zip(paths, names, strict=True):
        if name in by_name:
            raise OptionError(
                f"The stores {by_name[name]} and {path} are both called {name!r}: set option "
                "brokerNames."
            )
        by_name[name] = path


def _commitlog_folders(
    given: tuple[str, ...] | Mapping[str, tuple[str, ...]] | None, names: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Return the folders of logs that are not in their stores, by broker."""
    if given is None:
        return {}
    if isinstance(given, tuple):
        if len(names) > 1:
            raise OptionError(
                "Option storePathCommitLog lists folders of one store, but the query reads "
                f"{len(names)} stores. List them by broker, as in "
                '{"broker-a":["/disk1/log","/disk2/log"]}.'
            )
        given = {names[0]: given}
    for broker in given:
        if broker not in names:
            raise OptionError(
                f"Option storePathCommitLog has an unknown broker {broker!r}. The brokers are: "
                f"{some(names)}."
            )
    return {broker: tuple(map(_absolute, folders)) for broker, folders in given.items()}


def _absolute(path: str) -> str:
    """Make a local path absolute: tasks run in other folders than the driver."""
    from rmqstore_spark.files.open import local_path

    local = local_path(path)
    return path if local is None else os.path.abspath(local)


def _expand(path: str) -> list[str]:
    """Return the paths that a glob matches, sorted; any other path unchanged."""
    from rmqstore_spark.files.open import local_path

    absolute = _absolute(path)
    if path.split("::")[-1].startswith("memory:"):
        raise OptionError(
            f"{path} is in the memory of one process, but Spark reads in several processes. Copy "
            "the store to storage that all of them can access."
        )
    if not glob.has_magic(path):
        return [absolute]
    if "::" in path:
        raise OptionError(f"{path}: a chained URL cannot contain a pattern. List each store.")
    if local_path(path) is None:
        return _expand_remote(path)
    if os.path.exists(absolute):
        return [absolute]
    return _matches(path, [found for found in sorted(glob.glob(absolute)) if os.path.isdir(found)])


def _expand_remote(path: str) -> list[str]:
    from fsspec.core import url_to_fs

    fs, inner = url_to_fs(path)
    return _matches(path, [fs.unstrip_protocol(found) for found in sorted(fs.glob(inner))])


def _matches(path: str, found: list[str]) -> list[str]:
    if not found:
        raise StoreNotFoundError(
            f"No folder matches {path}. The pattern must match store directories, which contain "
            "commitlog/."
        )
    return found


def chosen_queues(chosen: QueueOptions, stores: Iterable[AnyStore]) -> Iterator[ChosenQueue]:
    """Yield the queues of the stores that the options choose.

    A broker has queues that never had a message. They are left out, as they have no files.
    """
    from rmqstore_spark.reader.store import Store

    for store in stores:
        names = chosen_names(chosen, store)
        queues: Sequence[AnyQueue]
        if isinstance(store, Store):
            queues = store.named_queues(names)
        else:
            store.look(names)
            names = store.used(names)
            queues = [store.queue(*name) for name in names]
        for name, queue in zip(names, queues, strict=True):
            yield ChosenQueue(QueueKey(store.broker_name, *name), store, queue)


def chosen_names(chosen: QueueOptions, store: AnyStore) -> list[tuple[str, int]]:
    """Return topic and queueId of the queues of a store that the options choose."""
    return [
        (topic.name, queue_id)
        for topic in store.known_topics()
        for queue_id in _chosen_ids(chosen, topic)
    ]


def _chosen_ids(chosen: QueueOptions, topic: Topic) -> Sequence[int]:
    if not chosen.wants_topic(topic.name):
        return ()
    if chosen.assign is None:
        return topic.queue_ids
    return [number for number in chosen.assign[topic.name] if number in topic.queue_ids]


def check_topics(chosen: QueueOptions, stores: Sequence[AnyStore]) -> None:
    """Check that the topics and queues of `subscribe` and `assign` exist.

    The log of a store without queues is scanned until all topics are found.

    Raises:
        TopicNotFoundError: no store has a topic, or a topic lacks a queue.
    """
    from rmqstore_spark.reader.store import Store

    existing: dict[str, set[int]] = {}
    for store in stores:
        for topic in store.known_topics():
            existing.setdefault(topic.name, set()).update(topic.queue_ids)
    named = set(chosen.named or ())
    without_queues = [
        store for store in stores if isinstance(store, Store) and not store.has_queues
    ]
    in_logs: set[str] = set()
    for store in without_queues:
        if not named <= existing.keys() | in_logs:
            in_logs |= _topics_in_log(store, named - existing.keys() - in_logs)
    for name in in_logs:
        existing.setdefault(name, set())
    where = some([str(store.path) for store in stores])
    for name in chosen.named or ():
        if name not in existing:
            raise TopicNotFoundError(
                f"Topic {name!r} does not exist in {where}. Existing topics: "
                f"{some(_of_users(existing))}."
            )
    if without_queues:
        return  # only reading them shows which queues their topics have
    for name, queue_ids in (chosen.assign or {}).items():
        missing = sorted(set(queue_ids) - existing[name])
        if missing:
            raise TopicNotFoundError(
                f"Topic {name!r} has no queue {some(map(str, missing))} in {where}. Its queues: "
                f"{some(map(str, sorted(existing[name])))}."
            )


def check_pattern(chosen: QueueOptions, stores: Sequence[AnyStore]) -> None:
    """Check that `subscribePattern` matches a topic, if all stores have queues.

    Raises:
        TopicNotFoundError: it matches no topic.
    """
    from rmqstore_spark.reader.store import Store

    if chosen.pattern is None or not all(
        store.has_queues for store in stores if isinstance(store, Store)
    ):
        return
    names = {topic.name for store in stores for topic in store.known_topics()}
    if any(chosen.wants_topic(name) for name in names):
        return
    remedy = ""
    if any(map(chosen.pattern.fullmatch, names)):
        remedy = "It matches system topics: set includeSystemTopics=true to read them. "
    raise TopicNotFoundError(
        f"subscribePattern {chosen.pattern.pattern!r} matches no topic in "
        f"{some([str(store.path) for store in stores])}. {remedy}Existing topics: "
        f"{some(_of_users(names))}."
    )


def _of_users(topics: Iterable[str]) -> list[str]:
    """Return the topics that are not a broker's own, sorted by name."""
    from rmqstore_spark.layout.constants import is_system_topic

    return sorted(name for name in topics if not is_system_topic(name))


def _topics_in_log(store: Store, wanted: set[str]) -> set[str]:
    """Return the topics in a log's records, reading until all `wanted` ones are found."""
    from rmqstore_spark.reader.options import ReadOptions

    found: set[str] = set()
    options = ReadOptions(columns=("topic",), check_crc=False, mode="DROPMALFORMED")
    for batch in store.scan(options=options):
        found.update(batch.column("topic").unique().to_pylist())
        if wanted <= found:
            break
    return found
