"""Read the broker's configuration files: JSON in fastjson's dialect, each possibly with a `.bak`.

A broker replaces such a file by renaming, and keeps the old one as `.bak`. In between, and after a
crash, only the `.bak` may be whole (`docs/format.md`, "Configuration files"; RocketMQ's
`ConfigManager.load`). A file is whole if it is JSON of the shape that its name tells
(`configshapes`): a broker takes an empty file, or `{}`, for an empty table, and starts with it.
"""

from __future__ import annotations

import logging
import os
from typing import Any, Final

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.base import Files
from rmqstore_spark.files.configshapes import SHAPES, ConfigShape, shape_fault
from rmqstore_spark.files.told import Told
from rmqstore_spark.layout.fastjson import parse_fastjson

_log = logging.getLogger(__name__)

# The offsets of 10,000 groups on 64 queues take about 30 MB. A larger file is not a configuration.
_MAX_BYTES: Final = 64 << 20
_BACKUP: Final = ".bak"
_REMEDY: Final = (
    "Restore it from a copy. If its content is not needed, remove it and its copy that ends in "
    ".bak."
)


_told = Told()


def read_config(files: Files, path: str, shape: ConfigShape | None = None) -> dict[str, Any] | None:
    """Return a configuration file's content, or its `.bak`'s if it is missing or damaged.

    The use of a `.bak` is logged as a warning, once as long as the cause is the same.

    Args:
        files: the file system.
        path: the file.
        shape: its shape; by default the one that its name tells.

    Returns:
        The JSON object; None if neither file exists.

    Raises:
        CorruptStoreError: at least one file exists, but none is JSON of the right shape.
        StoreAccessError: a file may not be read.
    """
    shape = shape or SHAPES.get(os.path.basename(path))
    damage: CorruptStoreError | None = None
    try:
        found = _read(files, path, shape)
        _told.forget(files, path)
        return found
    except FileNotFoundError:
        cause = f"{path} is missing."
    except CorruptStoreError as error:
        damage, cause = error, str(error)
    backup = path + _BACKUP
    try:
        found = _read(files, backup, shape)
    except FileNotFoundError:
        if damage is None:
            return None
        raise damage from None
    except CorruptStoreError as error:
        raise damage or error from None
    loss = f", so {shape.holds} may be older. {shape.loss}" if shape else "."
    text = f"{cause.partition(_REMEDY)[0].rstrip()} Its older copy {backup} is used{loss}"
    if _told.is_new(files, path, text):
        _log.warning("%s", text)
    return found


def _read(files: Files, path: str, shape: ConfigShape | None) -> dict[str, Any]:
    size = files.size(path)
    if size > _MAX_BYTES:
        raise CorruptStoreError(
            f"a configuration file has {size} bytes, more than {_MAX_BYTES}", file=path
        )
    return parse_config(files.read(path, 0, _MAX_BYTES), path, shape)


def parse_config(data: bytes, path: str, shape: ConfigShape | None) -> dict[str, Any]:
    """Parse the content of a configuration file or its `.bak`.

    Raises:
        CorruptStoreError: it is not JSON of the given shape.
    """
    fault, offset = "is empty", None
    try:
        text = data.decode("utf-8")
        if text.strip():
            value: Any = parse_fastjson(text, file=path)
            wrong = shape_fault(value, shape)
            if not wrong:
                found: dict[str, Any] = value
                return found
            fault = f"has another shape than it must have: {wrong}"
    except CorruptStoreError as error:
        fault, offset = f"is not valid JSON: {error.cause}", error.offset
    except ValueError as error:
        fault = f"is not valid JSON: {error}"
    holds = f" It holds {shape.holds}." if shape else ""
    raise CorruptStoreError(
        f"the configuration {fault}", file=path, offset=offset, remedy=f"{_REMEDY}{holds}"
    )
