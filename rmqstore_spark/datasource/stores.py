"""The stores of a query, and which of their queues it reads."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rmqstore_spark.datasource.offsets import QueueKey
from rmqstore_spark.datasource.options import Options
from rmqstore_spark.errors import OptionError, StoreNotFoundError, TopicNotFoundError

if TYPE_CHECKING:
    from rmqstore_spark.reader.queue import Queue
    from rmqstore_spark.reader.store import Store, Topic

__all__ = ["ChosenQueue", "check_topics", "chosen_queues", "open_stores"]

_LISTED = 50


class ChosenQueue(NamedTuple):
    """A queue that the query reads."""

    key: QueueKey
    store: Store
    queue: Queue


def open_stores(options: Options) -> list[Store]:
    """Open the stores that `path` names, in its order.

    Raises:
        StoreNotFoundError: there is no store at a path, or nothing matches a glob.
        OptionError: `brokerNames` or `storePathCommitLog` do not fit the stores.
    """
    from rmqstore_spark.reader.store import Store

    paths = [found for path in options.paths for found in _expand(path)]
    names: Sequence[str | None] = options.broker_names or [None] * len(paths)
    if len(names) != len(paths):
        raise OptionError(
            f"Option brokerNames gives {len(names)} names for {len(paths)} stores: "
            f"{_some(paths)}. Give one for each, in this order."
        )
    folders = options.commitlog_paths
    if isinstance(folders, tuple) and len(paths) > 1:
        raise OptionError(
            f"Option storePathCommitLog names folders of one store, but there are {len(paths)}: "
            'give it by broker, as {"broker-a":["/disk1/log","/disk2/log"]}.'
        )
    stores: dict[str, Store] = {}
    for path, name in zip(paths, names, strict=True):
        store = Store.open(path, broker_name=name)
        own = folders.get(store.broker_name) if isinstance(folders, Mapping) else folders
        if own is not None:
            store = Store.open(path, broker_name=name, commitlog_paths=own)
        other = stores.get(store.broker_name)
        if other is not None:
            raise OptionError(
                f"The stores {other.path} and {store.path} are both called {store.broker_name!r}: "
                "name them by brokerNames."
            )
        stores[store.broker_name] = store
    if isinstance(folders, Mapping):
        for broker in folders:
            if broker not in stores:
                raise OptionError(
                    f"Option storePathCommitLog names the broker {broker!r}; there are: "
                    f"{_some(stores)}."
                )
    return list(stores.values())


def _expand(path: str) -> list[str]:
    """Give the paths that a glob matches, sorted; any other path, made absolute, alone."""
    from rmqstore_spark.files.open import local_path

    local = local_path(path)
    if local is None:
        return _expand_remote(path) if glob.has_magic(path) and "::" not in path else [path]
    # Tasks run in other folders than the driver does.
    absolute = os.path.abspath(local)
    if not glob.has_magic(local) or os.path.exists(absolute):
        return [absolute]
    return _matches(path, [found for found in sorted(glob.glob(absolute)) if os.path.isdir(found)])


def _expand_remote(path: str) -> list[str]:
    from fsspec.core import url_to_fs

    fs, inner = url_to_fs(path)
    return _matches(path, [fs.unstrip_protocol(found) for found in sorted(fs.glob(inner))])


def _matches(path: str, found: list[str]) -> list[str]:
    if not found:
        raise StoreNotFoundError(
            f"No folder matches {path}. Correct the pattern: it must match store directories, the "
            "folders that hold commitlog/."
        )
    return found


def chosen_queues(options: Options, stores: Iterable[Store]) -> Iterator[ChosenQueue]:
    """Give the queues that the options choose, of those that the stores have."""
    for store in stores:
        for topic in store.topics():
            for queue_id in _chosen_ids(options, topic):
                key = QueueKey(store.broker_name, topic.name, queue_id)
                yield ChosenQueue(key, store, store.queue(topic.name, queue_id))


def _chosen_ids(options: Options, topic: Topic) -> Sequence[int]:
    if options.assign is not None:
        assigned = options.assign.get(topic.name, ())
        return [queue_id for queue_id in assigned if queue_id in topic.queue_ids]
    if options.topics is not None:
        return topic.queue_ids if topic.name in options.topics else ()
    if topic.is_system and not options.include_system:
        return ()
    if options.pattern is not None and not options.pattern.fullmatch(topic.name):
        return ()
    return topic.queue_ids


def check_topics(options: Options, stores: Sequence[Store]) -> None:
    """Check that what `subscribe` and `assign` name is there.

    Raises:
        TopicNotFoundError: a topic is in none of the stores, or has no such queue.
    """
    existing: dict[str, set[int]] = {}
    for store in stores:
        for topic in store.topics():
            existing.setdefault(topic.name, set()).update(topic.queue_ids)
    where = _some([str(store.path) for store in stores])
    for name in [*(options.topics or ()), *(options.assign or ())]:
        if name not in existing:
            raise TopicNotFoundError(
                f"There is no topic {name!r} in {where}. There are: {_some(sorted(existing))}."
            )
    for name, queue_ids in (options.assign or {}).items():
        missing = sorted(set(queue_ids) - existing[name])
        if missing:
            raise TopicNotFoundError(
                f"Topic {name!r} has no queue {_some(map(str, missing))} in {where}. It has: "
                f"{_some(map(str, sorted(existing[name])))}."
            )


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    return (", ".join(listed[:_LISTED]) or "none") + more
