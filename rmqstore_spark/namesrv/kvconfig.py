"""Configuration by namespace and key, which administrators and brokers share, kept in a file.

The file is RocketMQ's `kvConfig.json`: `{"configTable":{namespace:{key:value}}}`. Upstream:
KVConfigManager, which also reports success when the file could not be written; this does not.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from typing import Final

from rmqstore_spark.errors import RemotingError
from rmqstore_spark.files.configfiles import SHAPES, read_config
from rmqstore_spark.files.durable import make_folder, replace_file
from rmqstore_spark.files.local import LocalFiles
from rmqstore_spark.remoting.codec.codes import ResponseCode

ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"
"""The namespace that says over which queues an ordered topic goes: `broker-a:4;broker-b:4`."""

_MAX_BYTES: Final = 4 << 20
"""Most bytes of all namespaces, keys and values as JSON: they must fit an answer."""


class KvConfig:
    """Values by namespace and key.

    Args:
        path: the file. It may be missing.

    Raises:
        CorruptStoreError: the file is not what RocketMQ or this class writes, and it has no copy
            `.bak` that is.
        StoreAccessError: the file cannot be read.
    """

    def __init__(self, path: str) -> None:
        self._spaces = _read(path)
        self._held = sum(
            _size(name) + sum(_size(key) + _size(value) for key, value in values.items())
            for name, values in self._spaces.items()
        )
        self._saver = Saver(path, self._encoded)

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value; None if there is none."""
        return self._spaces.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Return the values of a namespace by key; None if there is no such namespace."""
        return self._spaces.get(namespace)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. It holds at once; this returns when it is on disk.

        Raises:
            RemotingError: there is no room for it, and nothing has changed.
            StoreWriteError: the file could not be written.
        """
        more = _size(value)
        before = self.get(namespace, key)
        if before is not None:
            more -= _size(before)
        else:
            more += _size(key) + (0 if namespace in self._spaces else _size(namespace))
        if more > 0 and self._held + more > _MAX_BYTES:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR,
                f"the key-value configuration has no room for {key[:80]}: the most are "
                f"{_MAX_BYTES} bytes. Delete keys that nobody needs.",
            )
        self._held += more
        self._spaces.setdefault(namespace, {})[key] = value
        await self._saver.save()

    async def delete(self, namespace: str, key: str) -> None:
        """Remove a value, if there is one. It is gone at once; this returns when the file has it.

        Raises:
            StoreWriteError: the file could not be written.
        """
        value = self._spaces.get(namespace, {}).pop(key, None)
        if value is not None:
            self._held -= _size(key) + _size(value)
            await self._saver.save()

    def _encoded(self) -> bytes:
        return json.dumps({"configTable": self._spaces}, separators=(",", ":")).encode()


class Saver:
    """Writes a file in a thread. Changes that come meanwhile are written together.

    Args:
        path: the file; its folder is created.
        content: returns what to write.
    """

    def __init__(self, path: str, content: Callable[[], bytes]) -> None:
        self._path = os.path.abspath(path)
        self._content = content
        self._lock = asyncio.Lock()
        self._wanted = 0
        self._saved = 0

    async def save(self) -> None:
        """Return when the content as it is now, or later, is on disk.

        Raises:
            StoreWriteError: the file could not be written.
        """
        self._wanted += 1
        mine = self._wanted
        async with self._lock:
            if self._saved < mine:
                latest = self._wanted
                await asyncio.to_thread(self._write, self._content())
                self._saved = latest

    def _write(self, content: bytes) -> None:
        make_folder(os.path.dirname(self._path))
        replace_file(self._path, content)


def _size(text: str) -> int:
    return len(json.dumps(text))


def _read(path: str) -> dict[str, dict[str, str]]:
    found = read_config(LocalFiles(), path, SHAPES["kvConfig.json"]) or {}
    table: dict[str, dict[str, str]] = found.get("configTable", {})
    return table
