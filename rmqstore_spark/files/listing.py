"""List trees folder by folder, or from one listing of fsspec, in the same shape."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.files.base import FileInfo, Files, Listing, join


def walk_by_folder(
    files: Files, path: str, depth: int, on_error: Callable[[str, Exception], None]
) -> Iterator[tuple[str, Listing]]:
    """Yield as `Files.walk` does, with one `Files.list` per folder.

    The depth is bounded, so a loop of links ends.
    """
    todo = [("", 0)]
    while todo:
        relative, level = todo.pop()
        try:
            listing = files.list(join(path, relative) if relative else path, sizes=False)
        except (OSError, RmqStoreError) as error:
            on_error(relative, error)
            continue
        yield relative, listing
        if level < depth:
            todo += [
                (f"{relative}/{info.name}" if relative else info.name, level + 1)
                for info in reversed(listing)
                if info.is_dir
            ]


def by_folder(
    found: Mapping[str, Mapping[str, Any]], root: str, depth: int
) -> dict[str, dict[str, FileInfo]]:
    """Group the files of a tree by folder, down to a depth.

    Args:
        found: fsspec's description of each path.
        root: path of the tree, without slashes at its ends.
        depth: levels of folders below the root.

    Returns:
        Entries by name, by folder relative to the root. Includes folders that only occur as part of
        a path.
    """
    folders: dict[str, dict[str, FileInfo]] = {}
    for key, raw in found.items():
        path = key.strip("/")
        if root and not path.startswith(root + "/"):
            continue
        parts = path[len(root) :].strip("/").split("/", depth + 1)
        folder = ""
        for part in parts[:-1]:
            folders.setdefault(folder, {}).setdefault(part, FileInfo(part, 0, True, -1))
            folder = f"{folder}/{part}" if folder else part
        if len(parts) <= depth + 1:
            info = described(raw)
            entries = folders.setdefault(folder, {})
            if info.name and not (info.name in entries and info.is_dir):
                entries[info.name] = info
                if info.is_dir and len(parts) <= depth:
                    folders.setdefault(f"{folder}/{info.name}" if folder else info.name, {})
    return folders


def described(raw: Mapping[str, Any]) -> FileInfo:
    """Return an entry as fsspec describes it; size -1 if it gives none."""
    kind, size = raw.get("type"), raw.get("size")
    is_dir = kind == "directory"
    if is_dir or kind == "other":  # a pipe, a device, a dangling link
        size = 0
    return FileInfo(
        last_part(str(raw["name"])),
        -1 if size is None else int(size),
        is_dir,
        _mtime_ms(raw),
        bool(raw.get("islink", False)),
    )


def last_part(path: str) -> str:
    """Return the name of a file or folder."""
    return path.rstrip("/").rsplit("/", 1)[-1]


def _mtime_ms(raw: Mapping[str, Any]) -> int:
    """Return the time of the last change; file systems use different names for it."""
    for key in ("mtime", "LastModified", "last_modified", "updated", "modified", "created"):
        value = raw.get(key)
        if isinstance(value, dt.datetime):
            return int(value.timestamp() * 1000)
        if isinstance(value, (int, float)):
            return int(value * 1000)
    return -1
