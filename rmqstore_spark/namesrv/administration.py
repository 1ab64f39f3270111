"""Requests of administrators: the key-value configuration, and the name server's own.

Administrators and brokers share the former, by namespace and key. Its file is RocketMQ's
`kvConfig.json`: `{"configTable":{namespace:{key:value}}}`. Upstream: KVConfigManager, which also
reports success when the file could not be written; this does not.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.engine.config.properties_file import edit_properties, parse_properties
from rmqstore_spark.errors import OptionError, RemotingError, StoreWriteError
from rmqstore_spark.files.configfiles import SHAPES, read_config
from rmqstore_spark.files.durable import make_folder, replace_file
from rmqstore_spark.files.systems.local import LocalFiles
from rmqstore_spark.namesrv.config import CHANGEABLE, KEYS, NamesrvConfig
from rmqstore_spark.remoting.codec.bodies import dump_body
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.fields import Fields
from rmqstore_spark.remoting.connection import RemotingConnection
from rmqstore_spark.remoting.dispatch import Handler
from rmqstore_spark.remoting.peerlog import PeerLog

ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"
"""The namespace that says over which queues an ordered topic goes: `broker-a:4;broker-b:4`."""

_MAX_BYTES: Final = 4 << 20
"""Most bytes of all namespaces, keys and values as JSON: they must fit an answer."""
_MAX_CHANGE: Final = 64 << 10
_MOST_LINES: Final = 20
"""Lines about the requests of one host that are logged in a minute, of each kind."""
_FIXED: Final = {key.name for key in KEYS} - CHANGEABLE | {"configBlackList", "rocketmqHome"}


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


class Administration:
    """Answers administrators.

    Args:
        config: the name server's configuration at its start.
        kv: the key-value configuration.

    Attributes:
        config: the configuration now.
    """

    def __init__(self, config: NamesrvConfig, kv: KvConfig) -> None:
        self.config = config
        self._kv = kv
        self._log = PeerLog(logging.getLogger(__name__), _MOST_LINES)
        self._saver = Saver(config.config_store_file, self._changed_file)

    def handlers(self) -> Mapping[int, Handler]:
        """Return what handles each code."""
        return {
            RequestCode.PUT_KV_CONFIG: self._put,
            RequestCode.GET_KV_CONFIG: self._get,
            RequestCode.DELETE_KV_CONFIG: self._delete,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._list,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
            RequestCode.GET_NAMESRV_CONFIG: self._get_config,
        }

    async def _put(self, connection: RemotingConnection, request: Command) -> Command:
        fields = Fields(request.ext)
        with _explained(self._log, connection):
            await self._kv.put(fields.name("namespace"), fields.name("key"), fields.text("value"))
        return request.answer()

    def _get(self, _: RemotingConnection, request: Command) -> Command:
        fields = Fields(request.ext)
        namespace, key = fields.name("namespace"), fields.name("key")
        value = self._kv.get(namespace, key)
        if value is None:
            raise RemotingError(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {namespace} Key: {key}",
            )
        return request.answer(ext={"value": value})

    async def _delete(self, connection: RemotingConnection, request: Command) -> Command:
        fields = Fields(request.ext)
        with _explained(self._log, connection):
            await self._kv.delete(fields.name("namespace"), fields.name("key"))
        return request.answer()

    def _list(self, _: RemotingConnection, request: Command) -> Command:
        namespace = Fields(request.ext).name("namespace")
        found = self._kv.namespace(namespace)
        if found is None:
            raise RemotingError(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}"
            )
        return request.answer(body=dump_body({"table": found}))

    async def _update_config(self, connection: RemotingConnection, request: Command) -> Command:
        if len(request.body) > _MAX_CHANGE:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR,
                f"a change of the configuration has more than {_MAX_CHANGE} bytes",
            )
        try:
            values = parse_properties(str(request.body, "utf-8"))
            fixed = sorted(_FIXED.intersection(values))
            if fixed:
                raise RemotingError(
                    ResponseCode.NO_PERMISSION,
                    f"Can not update config in black list. {', '.join(fixed)} can only be changed "
                    "in the file, before a start.",
                )
            self.config = self.config.with_overrides(values, source="The request: ")
        except OptionError as error:
            raise RemotingError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        except ValueError as error:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR, f"the body is not a properties file: {error}"
            ) from None
        changed = ", ".join(f"{key}={values[key]}" for key in sorted(CHANGEABLE & values.keys()))
        self._log.info(
            connection.peer, "%s changed the configuration: %s.", escaped(connection.peer), changed
        )
        with _explained(self._log, connection):
            await self._saver.save()
        return request.answer()

    def _get_config(self, _: RemotingConnection, request: Command) -> Command:
        return request.answer(body=self._properties().encode())

    def _properties(self) -> str:
        return self.config.to_properties()

    def _changed_file(self) -> bytes:
        """Return the file of the configuration with what can be changed as it is now."""
        path = self.config.config_store_file
        if not os.path.exists(path):
            return self._properties().encode()
        values = parse_properties(self._properties())
        try:
            return edit_properties(path, {key: values[key] for key in CHANGEABLE}).encode()
        except OptionError as error:
            raise StoreWriteError(str(error)) from error


@contextmanager
def _explained(log: PeerLog, connection: RemotingConnection) -> Iterator[None]:
    """Log a failure to write a file that a connection asked for, and make it an answer."""
    try:
        yield
    except StoreWriteError as error:
        log.log(logging.ERROR, connection.peer, "%s", error)
        raise RemotingError(
            ResponseCode.SYSTEM_ERROR,
            f"the change holds until the name server ends, but was not saved: {error}",
        ) from error
