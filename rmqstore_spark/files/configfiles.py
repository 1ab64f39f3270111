"""Read the broker's configuration files: JSON in fastjson's dialect, each possibly with a `.bak`.

A broker replaces such a file by renaming, and keeps the old one as `.bak`. In between, and after a
crash, only the `.bak` may be whole (`docs/format.md`, "Configuration files"; RocketMQ's
`ConfigManager.load`). A file is whole if it is JSON of the shape that its name tells: a broker
takes an empty file, or `{}`, for an empty table, and starts with it. (Upstream: the classes that
extend ConfigManager; fastjson refuses most of what is refused here.)
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.systems.base import Files
from rmqstore_spark.layout.fastjson import parse_fastjson

_log = logging.getLogger(__name__)

DELAY_OFFSETS: Final = "delayOffset.json"

_MAX_OFFSET: Final = (1 << 63) - 1
_MAX_INT: Final = (1 << 31) - 1
_SHOWN: Final = 100
"""Characters of a name or value in an error."""

_Check = Callable[[dict[Any, Any]], str]
"""Returns what is wrong with a table, as a phrase; empty if it is sound."""


@dataclass(frozen=True)
class ConfigShape:
    """The shape of a file: an object with tables, which are objects.

    Attributes:
        tables: checks what is in each table. The file's writers never leave one out.
        others: checks of members that may be missing.
        holds: what the file has, for messages.
        loss: what happens without its newest content, as a sentence.
    """

    tables: Mapping[str, _Check]
    others: Mapping[str, Callable[[Any], str]]
    holds: str
    loss: str


def shape_fault(value: Any, shape: ConfigShape | None) -> str:
    """Return what is wrong with the content of a file, as a phrase; empty if it is sound.

    Args:
        value: the parsed JSON.
        shape: None: any object.
    """
    if not isinstance(value, dict):
        return f"it is {_kind(value)}, not an object"
    if shape is None:
        return ""
    for name, check in shape.tables.items():
        if name not in value:
            return f"it has no {name}"
        if not isinstance(value[name], dict):
            return f"{name} is {_kind(value[name])}, not an object"
        fault = check(value[name])
        if fault:
            return f"{name}: {fault}"
    for name, look in shape.others.items():
        fault = look(value[name]) if value.get(name) is not None else ""
        if fault:
            return f"{name} {fault}"
    return ""


def impossible_delay(level: Any, offset: Any) -> str:
    """Return why an entry of delayOffset.json cannot be, as a phrase; empty if it can.

    That does not damage the file: the log tells the progress of the level.
    """
    if not _is_number(level, 1, _MAX_INT):
        return f"{_shown(level)} is not a delay level"
    if not _is_offset(offset):
        return f"level {level} has {_shown(offset)}, which is not an offset"
    return ""


def is_topic_entry(entry: Any) -> bool:
    """Return whether a value is the entry of a topic: an object with members of the right types."""
    return not _entries(_TOPIC)({"": entry})


def is_group_entry(entry: Any) -> bool:
    """Return whether a value is the entry of a consumer group."""
    return not _entries(_GROUP)({"": entry})


def is_data_version(value: Any) -> bool:
    """Return whether a value is the version of a table."""
    return not _version(value)


def _any(_: dict[Any, Any]) -> str:
    return ""


def _entries(types: Mapping[str, type]) -> _Check:
    """Return a check of a table of objects, some of whose members have known types."""

    def check(table: dict[Any, Any]) -> str:
        for name, entry in table.items():
            if not isinstance(entry, dict):
                return f"the entry of {_shown(name)} is {_kind(entry)}, not an object"
            for key, kind in types.items():
                found = entry.get(key)
                if found is not None and type(found) is not kind:
                    return f"{key} of {_shown(name)} is {_shown(found)}"
        return ""

    return check


def _group_offsets(table: dict[Any, Any]) -> str:
    for name, offsets in table.items():
        if "@" not in str(name):
            return f"{_shown(name)} is not TOPIC@GROUP"
        if not isinstance(offsets, dict):
            return f"the entry of {_shown(name)} is {_kind(offsets)}, not an object"
        for queue_id, offset in offsets.items():
            if not _is_number(queue_id, 0, _MAX_INT):
                return f"{_shown(name)} has a queue {_shown(queue_id)}"
            if not _is_progress(offset):
                return f"queue {queue_id} of {_shown(name)} has the offset {_shown(offset)}"
    return ""


def _lmq_offsets(table: dict[Any, Any]) -> str:
    for name, offset in table.items():
        if "@" not in str(name):
            return f"{_shown(name)} is not TOPIC@GROUP"
        if not _is_progress(offset):
            return f"{_shown(name)} has the offset {_shown(offset)}"
    return ""


def _checks(table: dict[Any, Any]) -> str:
    for offset, count in table.items():
        if not _is_number(offset, 0, _MAX_OFFSET) or not _is_offset(count):
            return f"{_shown(offset)} has {_shown(count)}, which is not a number of checks"
    return ""


def _texts(table: dict[Any, Any]) -> str:
    for name, values in table.items():
        if not isinstance(values, dict):
            return f"the namespace {_shown(name)} is {_kind(values)}, not an object"
        for key, value in values.items():
            if not isinstance(value, str):
                return f"{_shown(key)} of {_shown(name)} is {_kind(value)}, not a text"
    return ""


def _version(value: Any) -> str:
    if not isinstance(value, dict):
        return f"is {_kind(value)}, not an object"
    for key in ("counter", "timestamp"):
        if value.get(key) is not None and type(value[key]) is not int:
            return f"has a {key} of {_shown(value[key])}"
    return ""


def _log_offset(value: Any) -> str:
    return "" if _is_offset(value) else f"is {_shown(value)}, which is not an offset"


def _is_progress(value: Any) -> bool:
    """Return whether a value is an offset of a group, or none.

    Brokers write -1, which JavaScript's clients report of queues from which they have read nothing
    yet, and take it for no offset.
    """
    return _is_offset(value) or (type(value) is int and value == -1)


def _is_offset(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX_OFFSET


def _is_number(key: Any, least: int, most: int) -> bool:
    """Return whether a key of an object is a number of a queue, a level or an offset."""
    text = str(key)
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(most))
    return is_number and least <= int(text) <= most


def _kind(value: Any) -> str:
    """Return what a JSON value is."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    names: dict[type, str] = {int: "a number", float: "a number", str: "a text", list: "a list"}
    return names.get(type(value), "an object")


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)) or value is None or isinstance(value, bool):
        return _kind(value)
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


_DATA_VERSION: Final = {"dataVersion": _version}

_TOPIC: Final = {"readQueueNums": int, "writeQueueNums": int, "perm": int, "order": bool}
_GROUP: Final = {
    "brokerId": int, "consumeBroadcastEnable": bool, "consumeEnable": bool,
    "consumeFromMinEnable": bool, "notifyConsumerIdsChangedEnable": bool, "retryMaxTimes": int,
    "retryQueueNums": int, "whichBrokerWhenConsumeSlowly": int,
}  # fmt: skip
_PROGRESS_LOSS: Final = (
    "Consumer groups may receive messages again, or start again where they are not in it."
)

SHAPES: Final[Mapping[str, ConfigShape]] = {
    "topics.json": ConfigShape(
        {"topicConfigTable": _entries(_TOPIC)}, _DATA_VERSION,
        "the settings of topics",
        "Newer topics and settings may be missing: numbers of queues, permissions.",
    ),
    "consumerOffset.json": ConfigShape(
        {"offsetTable": _group_offsets}, _DATA_VERSION,
        "the progress of consumer groups", _PROGRESS_LOSS,
    ),
    "lmqConsumerOffset.json": ConfigShape(
        {"lmqOffsetTable": _lmq_offsets, "offsetTable": _group_offsets}, _DATA_VERSION,
        "the progress of consumer groups", _PROGRESS_LOSS,
    ),
    "subscriptionGroup.json": ConfigShape(
        {"subscriptionGroupTable": _entries(_GROUP)}, _DATA_VERSION,
        "the settings of consumer groups",
        "Newer groups and settings may be missing: whether a group may consume, its retries.",
    ),
    DELAY_OFFSETS: ConfigShape(
        {"offsetTable": _any}, _DATA_VERSION,
        "the progress of delayed messages",
        "What a broker delivered since may be delivered again; what a store process delivered is "
        "found in the log.",
    ),
    "consumerFilter.json": ConfigShape(
        {"filterDataByTopic": _entries({})}, {},
        "the filters of consumer groups",
        "Filters by SQL expressions of newer subscriptions may be missing.",
    ),
    "transactionChecks.json": ConfigShape(
        {"checks": _checks}, {"logOffset": _log_offset},
        "how often producers were asked for the outcome of transactions",
        "They may be asked more often.",
    ),
    "kvConfig.json": ConfigShape(
        {"configTable": _texts}, {},
        "the key-value configuration",
        "Newer keys and values may be missing.",
    ),
}  # fmt: skip
"""The known files, by name."""


_MOST: Final = 1000


class Told:
    """What this process last said of each file. Threads may share it.

    It remembers 1,000 files. One that was forgotten for others is told of again, not passed over.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: dict[tuple[str, str], str] = {}

    def is_new(self, files: Files, path: str, text: str) -> bool:
        """Return whether something else, or nothing, was said of a file before; note the text."""
        key = files.place, path
        with self._lock:
            is_new = self._texts.pop(key, None) != text
            if len(self._texts) >= _MOST:
                del self._texts[next(iter(self._texts))]
            self._texts[key] = text
            return is_new

    def forget(self, files: Files, path: str) -> None:
        """Note that a file is sound."""
        with self._lock:
            self._texts.pop((files.place, path), None)


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
