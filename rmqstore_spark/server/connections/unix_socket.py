"""Listens on a unix socket that only the owner of the process can reach."""

from __future__ import annotations

import os
import socket
import stat
from typing import Final

from rmqstore_spark.errors import OptionError, ServiceError

_BACKLOG: Final = 512


def listen_on_path(path: str) -> socket.socket:
    """Return a listening unix socket that only this user can reach.

    Raises:
        OptionError: its folder is open to others, or the path is something other than a socket.
        ServiceError: another process listens on it, or it cannot be bound.
    """
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        status = os.stat(folder)
    except OSError as error:
        raise OptionError(f"The folder {folder} of listenSocket cannot be used: {error}.") from None
    if status.st_mode & 0o077 or status.st_uid != os.geteuid():
        raise OptionError(
            f"The folder {folder} of listenSocket must be accessible to its owner only (mode "
            "0700): anyone who reaches the socket can write to the store. Run chmod 700, or "
            "use another folder."
        )
    _remove_stale(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(path)
        os.chmod(path, 0o600)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise ServiceError(
            f"The store process cannot listen on {path}: {error}. Set another listenSocket."
        ) from None
    return listening


def _remove_stale(path: str) -> None:
    """Remove the socket that a killed process left behind."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise OptionError(f"listenSocket {path} exists and is not a socket.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            os.unlink(path)
            return
    raise ServiceError(f"Another process listens on {path}. Stop it, or set another listenSocket.")
