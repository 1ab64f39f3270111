"""How a process is reached: its host's name, the first contact with it, pauses between tries.

A process that has answered before may be restarting, and is waited for as long as a restart takes.
One that has never answered is more likely at another address. So the first contact is given up
soon, and after two seconds a line says what is waited for.

Programs that consist of many short processes keep what they have reached in a folder.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, TypeAlias

_log = logging.getLogger("rmqstore_spark")

CONNECT_SECONDS: Final = 10.0
"""How long to wait for a first contact, unless told otherwise."""

_QUIET: Final = 2.0

_reached: set[str] = set()
_folders: list[str] = []


def remember_in(folder: str) -> None:
    """Keep what is reached in a folder, for other processes of the same program."""
    if folder not in _folders:
        _folders.append(folder)


def was_reached(place: str) -> bool:
    """Return whether a process at an address has answered before."""
    if place in _reached:
        return True
    return any(os.path.exists(os.path.join(folder, _name(place))) for folder in _folders)


def note_reached(place: str) -> None:
    """Take note that a process at an address has answered."""
    if place in _reached:
        return
    _reached.add(place)
    for folder in _folders:
        with suppress(OSError), open(os.path.join(folder, _name(place)), "wb"):
            pass  # without it, another process is a little less patient


def _name(place: str) -> str:
    return hashlib.sha256(place.encode()).hexdigest()[:32]


class FirstContact:
    """Logs once what is waited for, if it takes long. A context manager.

    Args:
        who: is waited for, to begin a sentence with.
        seconds: after which it is given up.
    """

    def __init__(self, who: str, seconds: float) -> None:
        self._who = who
        self._seconds = seconds
        self._why = ""
        self._timer = threading.Timer(_QUIET, self._tell)
        self._timer.daemon = True

    def __enter__(self) -> FirstContact:
        if self._seconds > _QUIET:
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over()

    def over(self) -> None:
        """Take note that there was an answer: nothing more is logged."""
        self._timer.cancel()

    def because(self, error: object) -> None:
        """Take note of what the last try met."""
        self._why = f" {error}"

    def _tell(self) -> None:
        _log.warning(
            "Waiting for %s, which has not answered yet.%s Giving up after %g s (connectTimeout).",
            self._who,
            self._why,
            self._seconds,
        )


Place: TypeAlias = tuple[Any, Any, int, str, Any]
"""As `socket.getaddrinfo` returns it: family, type, protocol, name, address."""


def looked_up(host: str, port: int, seconds: float) -> list[Place]:
    """Return the places of a host, in limited time: the resolver of the system has no limit.

    Args:
        host: its name, or an address.
        port: of the server.
        seconds: how long it may take; a search that takes longer ends by itself.

    Raises:
        OSError: nobody knows the name, or the name servers (DNS) do not answer in time.
    """
    if _is_address(host):  # nobody is asked, so no thread is needed
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    found: list[list[Place]] = []
    failed: list[OSError] = []

    def look() -> None:
        try:
            found.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            failed.append(error)
        except UnicodeError as error:
            failed.append(OSError(f"{host!r} is not a name: {error}"))

    thread = threading.Thread(target=look, name="rmqstore-look-up", daemon=True)
    thread.start()
    thread.join(max(seconds, 0.0))
    if failed:
        raise failed[0]
    if not found:
        raise TimeoutError(f"the name {host} could not be looked up in time")
    return found[0]


def _is_address(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError, ValueError):
            socket.inet_pton(family, host)
            return True
    return False


_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 5.0


def backoff() -> Iterator[float]:
    """Yield the seconds to wait before each retry: growing, and random, to spread clients out."""
    wait = _FIRST_WAIT
    while True:
        yield wait * random.uniform(0.5, 1.5)  # noqa: S311 - no secret depends on it
        wait = min(wait * 2, _LONGEST_WAIT)
