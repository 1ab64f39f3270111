"""Decides which symbolic links a store may have. One rule, for all that open or serve a store.

The store's folder, and `commitlog`, `consumequeue`, `consumequeue_ext`, `index` and `config` in it,
may be links to folders, as on another disk. They are followed once, when the store is opened. Any
other link is refused by name: a writer would write through it or replace it, and a store process
gives nobody files that lie elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import combinations
from typing import Final

from rmqstore_spark.errors import OptionError
from rmqstore_spark.files.names import OWN_FOLDER

LINKABLE: Final = ("commitlog", "consumequeue", "consumequeue_ext", "index", "config")
"""Folders of a store that may be links to folders."""

_LEVELS: Final = {"consumequeue": 2, "consumequeue_ext": 2}
"""Levels of folders below a folder that are looked through; the files of queues are not listed."""
_FILES: Final = ("checkpoint", "abort", "lock", OWN_FOLDER)


def refuse_links(store: str, *, keeps_config: bool = True) -> None:
    """Refuse links in a store, except those that are allowed.

    Links among the files of a queue are found where these are listed, with the survey of queues.

    Args:
        store: the store directory.
        keeps_config: whether files of `config/` are written: they must not be links then.

    Raises:
        OptionError: a link is not allowed, or does not lead to a folder of its own; or something in
            `rmqstore/` is neither a file nor a folder: reading it could wait for ever.
    """
    _require_own_targets(store)
    for name in _FILES:
        _refuse(os.path.join(store, name))
    for name in (*LINKABLE, OWN_FOLDER):
        if name == "config" and not keeps_config:
            continue
        for path in _links(os.path.join(store, name), _LEVELS.get(name, 1)):
            _refuse(path)
    _require_files(os.path.join(store, OWN_FOLDER))


def _require_own_targets(store: str) -> None:
    root = os.path.realpath(store)
    real = {"the store": root}
    for name in LINKABLE:
        path = os.path.join(store, name)
        if os.path.islink(path):
            if not os.path.isdir(path):
                raise OptionError(
                    f"{path} is a link to {os.readlink(path)}, which is not a folder. Mount the "
                    "disk, or correct the link."
                )
            real[path] = os.path.realpath(path)
    for (one, here), (other, there) in combinations(real.items(), 2):
        if _is_within(here, there) or _is_within(there, here):
            link = other if other != "the store" else one
            raise OptionError(
                f"{link} is a link to {os.readlink(link)}, which is, contains or lies in the "
                f"folder of {one if link == other else other}. Link it to a folder of its own."
            )


def _links(folder: str, levels: int) -> Iterator[str]:
    """Yield the links in a folder, and in the folders in it down to a number of levels."""
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
    except OSError:
        return  # it does not exist, or its reader says why it cannot be read
    for entry in found:
        if entry.is_symlink():
            yield entry.path
        elif levels > 1 and entry.is_dir():
            yield from _links(entry.path, levels - 1)


def _require_files(folder: str) -> None:
    try:
        with os.scandir(folder) as entries:
            odd = [entry.path for entry in entries if not (entry.is_file() or entry.is_dir())]
    except OSError:
        return
    if odd:
        raise OptionError(f"{odd[0]} is neither a file nor a folder. Remove it from the store.")


def _refuse(path: str) -> None:
    if os.path.islink(path):
        raise OptionError(
            f"{path} is a link to {os.readlink(path)}. In a store, only its folders "
            f"{', '.join(LINKABLE)} may be links. Put the target itself in the place of the link."
        )


def _is_within(inner: str, outer: str) -> bool:
    return os.path.join(inner, "").startswith(os.path.join(outer, ""))
