"""Find the stores of option `path`: directories, here or on any file system."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence

from rmqstore_spark.datasource.failures import some
from rmqstore_spark.datasource.options.table import PlaceOptions
from rmqstore_spark.datasource.sources.store import StoreSpec, check_names, different_names, spec_at
from rmqstore_spark.errors import OptionError, StoreNotFoundError
from rmqstore_spark.wire.endpoint import REPLICA


def at_paths(places: PlaceOptions) -> list[tuple[StoreSpec, ...]]:
    """Return the stores of `path`, each with its replicas."""
    groups = [group for path in places.paths for group in _replica_paths(path)]
    paths = [path for group in groups for path in group]
    archives = _archives(paths) if len(paths) > 1 else {}
    joined = {archive for of_store in archives.values() for archive in of_store}
    groups = [left for group in groups if (left := [p for p in group if p not in joined])]
    names = places.broker_names or [_common_name(group) for group in groups]
    check_names([group[0] for group in groups], names)
    if places.commitlog_paths is not None and any(len(group) > 1 for group in groups):
        raise OptionError(
            "Option storePathCommitLog does not work for a store with replicas. Read it through "
            "the endpoints of store processes."
        )
    folders = _commitlog_folders(places.commitlog_paths, names)
    return [
        tuple(
            spec_at(
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
    from rmqstore_spark.files.systems.open import open_files

    found: dict[str, list[str]] = {}
    for path in paths:
        of_store = archived_store(*open_files(path))
        if of_store is not None:
            found.setdefault(of_store, []).append(path)
    ids = {store_id_at(*open_files(path)): path for path in paths} if found else {}
    return {ids[one]: tuple(archives) for one, archives in found.items() if one in ids}


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
    from rmqstore_spark.files.systems.schemes import local_path

    local = local_path(path)
    return path if local is None else os.path.abspath(local)


def _expand(path: str) -> list[str]:
    """Return the paths that a glob matches, sorted; any other path unchanged."""
    from rmqstore_spark.files.systems.schemes import local_path

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
