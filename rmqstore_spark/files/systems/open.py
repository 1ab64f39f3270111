"""Open the file system that a path or URL names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final
from zipfile import BadZipFile

from rmqstore_spark.errors import (
    CorruptStoreError,
    OptionError,
    RmqStoreError,
    StoreNotFoundError,
)
from rmqstore_spark.files.systems.base import Files
from rmqstore_spark.files.systems.local import LocalFiles
from rmqstore_spark.files.systems.reads import PLAIN, DiskReads
from rmqstore_spark.files.systems.schemes import (
    check_names_place,
    is_endpoint,
    local_path,
    unusable,
)

__all__ = ["open_files"]

# By name: the class belongs to a floor above.
_ENDPOINT_FILES: Final = "rmqstore_spark.client.endpoint_files", "EndpointFiles"


def open_files(
    url: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    reads: DiskReads = PLAIN,
) -> tuple[Files, str]:
    """Return the file system that a path or URL names, and the path on it.

    Args:
        url: a local path, `file:` URL, any URL of fsspec (`s3://...`, `zip://...::...`), or the
            endpoint of a store process (`rmq://host:port`).
        storage_options: arguments that fsspec passes to the file system, or options of
            `StoreClient` for an endpoint; local paths need none.
        reads: how the bytes of local files are read.

    Returns:
        The files, and the path without scheme and trailing slashes.

    Raises:
        OptionError: the path is empty or invalid, or no file system for its scheme is installed.
        StoreNotFoundError, StoreAccessError, CorruptStoreError: the archive in the URL does not
            exist, may not be read, or is damaged.
        RmqStoreError: the file system cannot be reached.
    """
    path = os.fspath(url)
    if not path.strip() or "\0" in path:
        raise OptionError(f"{path!r} is not a path. Use the folder of a store, or its URL.")
    local = local_path(path)
    if local is not None:
        return LocalFiles(reads=reads), _without_slash(local)
    check_names_place(path)
    open_one = _open_endpoint if is_endpoint(path) else _open_fsspec
    try:
        return open_one(path, dict(storage_options or {}))
    except RmqStoreError:
        raise
    except FileNotFoundError as error:
        raise StoreNotFoundError(f"{path} does not exist ({error}). Correct the path.") from error
    except BadZipFile as error:
        raise CorruptStoreError(
            f"the archive is damaged ({error})", file=path, remedy="Copy it again, or unpack it."
        ) from error
    except Exception as error:  # every file system library raises its own exceptions
        raise unusable(path, error) from error


def _open_endpoint(path: str, options: Mapping[str, Any]) -> tuple[Files, str]:
    module, name = _ENDPOINT_FILES
    files = getattr(import_module(module), name)(path, **options)
    return files, files.root


def _open_fsspec(path: str, options: Mapping[str, Any]) -> tuple[Files, str]:
    # A store process has no other use for fsspec, which takes a tenth of a second to load.
    from fsspec.core import url_to_fs

    from rmqstore_spark.files.systems.remote import FsspecFiles

    fs, inner = url_to_fs(path, **options)
    return FsspecFiles(fs), _without_slash(inner)


def _without_slash(path: str) -> str:
    return path.rstrip("/") or path[:1]
