"""The id of a store, which it keeps wherever it is moved and however it is reached."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import re
from typing import Final
from uuid import uuid4

from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.files.durable import NO_ROOM, make_folder, replace_file
from rmqstore_spark.files.names import OWN_FOLDER, STORE_ID_NAME

_log = logging.getLogger(__name__)

_ID: Final = re.compile(r"[0-9a-f]{32}")


def store_id(store: str) -> str:
    """Return the id of a store that this process has open for writing; create it if it is missing.

    Raises:
        StoreWriteError: the id could not be saved.
    """
    kept = kept_store_id(store)
    if kept is not None:
        return kept
    path = os.path.join(store, OWN_FOLDER, STORE_ID_NAME)
    made = uuid4().hex
    make_folder(os.path.dirname(path))
    replace_file(path, made.encode())
    return made


def kept_store_id(store: str) -> str | None:
    """Return the id of a store; None if it has none, because only brokers have written it."""
    path = os.path.join(store, OWN_FOLDER, STORE_ID_NAME)
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            found = file.read(64).strip()
    except OSError:
        return None
    return found if _ID.fullmatch(found) else None


def served_store_id(store: str) -> str:
    """Return the id by which clients know a store; on a full disk, one that need not be saved.

    Raises:
        StoreWriteError: the id could not be saved, though the disk has room.
    """
    try:
        return store_id(store)
    except StoreWriteError as error:
        if error.errno not in NO_ROOM:
            raise
        _log.warning("%s Until the next start, the store has the id of its place.", error)
        return id_of_place(store)


def id_of_place(store: str) -> str:
    """Return an id of a store that keeps none: the same for each process on this machine."""
    status = os.stat(store)
    place = f"{platform.node()}:{status.st_dev}:{status.st_ino}"
    return hashlib.sha256(place.encode()).hexdigest()[:32]
