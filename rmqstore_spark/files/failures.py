"""Translate errors of a file system into errors of this package."""

from __future__ import annotations

import errno
import os

from rmqstore_spark.errors import RmqStoreError, StoreAccessError

__all__ = ["translated"]

# A dangling link, a loop of links, or a name too long for the disk holds no data either.
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
_DENIED = frozenset({errno.EACCES, errno.EPERM})
_TOO_MANY = frozenset({errno.EMFILE, errno.ENFILE})


def translated(error: OSError, path: str) -> Exception:
    """Return the error to raise instead of an `OSError` on `path`.

    Returns:
        `FileNotFoundError`, `StoreAccessError` or `RmqStoreError`, with the path and a remedy.
    """
    if isinstance(error, FileNotFoundError) or error.errno in _MISSING:
        return FileNotFoundError(errno.ENOENT, error.strerror or "no such file or folder", path)
    if isinstance(error, PermissionError) or error.errno in _DENIED:
        return StoreAccessError(
            f"no permission to read {path}{_who()}. Let that user read the store's files and "
            "enter its folders (r on files, r-x on folders)."
        )
    if error.errno in _TOO_MANY:
        return RmqStoreError(
            f"too many open files: {path} could not be opened. Raise the limit (ulimit -n)."
        )
    return RmqStoreError(
        f"{path} could not be read: {error.strerror or error}. Check its disk or mount."
    )


def _who() -> str:
    """Return this process's user, if the platform has one."""
    return f" for user id {os.geteuid()}" if hasattr(os, "geteuid") else ""
