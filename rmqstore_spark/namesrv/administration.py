"""Requests of administrators: the key-value configuration, and the name server's own."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Final

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.engine.config.properties_file import edit_properties, parse_properties
from rmqstore_spark.errors import OptionError, RemotingError, StoreWriteError
from rmqstore_spark.namesrv.config import CHANGEABLE, KEYS, NamesrvConfig
from rmqstore_spark.namesrv.kvconfig import KvConfig, Saver
from rmqstore_spark.remoting.codec.bodies import dump_body
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.fields import Fields
from rmqstore_spark.remoting.connection import RemotingConnection
from rmqstore_spark.remoting.dispatch import Handler
from rmqstore_spark.remoting.peerlog import PeerLog

_MAX_CHANGE: Final = 64 << 10
_MOST_LINES: Final = 20
"""Lines about the requests of one host that are logged in a minute, of each kind."""
_FIXED: Final = {key.name for key in KEYS} - CHANGEABLE | {"configBlackList", "rocketmqHome"}


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
        with _Explained(self._log, connection):
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
        with _Explained(self._log, connection):
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
        with _Explained(self._log, connection):
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


class _Explained:
    """Turns a failure to write a file into an answer.

    Args:
        log: where it is logged.
        connection: that asked for the change.
    """

    def __init__(self, log: PeerLog, connection: RemotingConnection) -> None:
        self._log = log
        self._peer = connection.peer

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StoreWriteError):
            self._log.log(logging.ERROR, self._peer, "%s", error)
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR,
                f"the change holds until the name server ends, but was not saved: {error}",
            ) from error
