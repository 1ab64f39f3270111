"""The id of a store, which it keeps wherever it is moved and however it is reached."""

from __future__ import annotations

import os
import re
from typing import Final
from uuid import uuid4

from rmqstore_spark.files.durable import make_folder, replace_file
from rmqstore_spark.files.own_names import OWN_FOLDER, STORE_ID_NAME

__all__ = ["kept_store_id", "store_id"]

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
