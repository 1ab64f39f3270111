"""Read the broker's configuration files: JSON in fastjson's dialect, each possibly with a `.bak`.

A broker replaces such a file by renaming, and keeps the old one as `.bak`. In between, and after a
crash, only the `.bak` may be whole (`docs/format.md`, "A store directory"; RocketMQ's
`ConfigManager.load`).
"""

from __future__ import annotations

import logging
from typing import Any

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.base import Files
from rmqstore_spark.layout.fastjson import parse_fastjson

__all__ = ["read_config"]

_log = logging.getLogger(__name__)

# The offsets of 10,000 groups on 64 queues take about 30 MB. A larger file is not a configuration.
_MAX_BYTES = 64 << 20


def read_config(files: Files, path: str) -> Any | None:
    """Return a configuration file's content, or its `.bak`'s if it is missing or does not parse.

    Returns:
        The parsed JSON; None if neither file exists, or the existing one is empty.

    Raises:
        CorruptStoreError: at least one file exists, but none parses.
        StoreAccessError: a file may not be read.
    """
    damage: CorruptStoreError | None = None
    for candidate in (path, path + ".bak"):
        try:
            value = _parse(files, candidate)
        except FileNotFoundError:
            continue
        except CorruptStoreError as error:
            damage = damage or error
            continue
        if value is not None:
            if damage is not None:
                _log.warning("%s Using its older copy %s.", damage, candidate)
            return value
    if damage is not None:
        raise damage
    return None


def _parse(files: Files, path: str) -> Any | None:
    size = files.size(path)
    if size > _MAX_BYTES:
        raise CorruptStoreError(
            f"a configuration file has {size} bytes, more than {_MAX_BYTES}", file=path
        )
    data = files.read(path, 0, _MAX_BYTES)
    try:
        text = data.decode("utf-8")
        return parse_fastjson(text) if text.strip() else None
    except ValueError as error:
        raise CorruptStoreError(
            f"the configuration is not valid JSON: {error}",
            file=path,
            remedy="Restore it from a copy, or remove it if its settings are not needed.",
        ) from error
