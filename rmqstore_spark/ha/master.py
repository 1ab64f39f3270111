"""Lets slaves connect, and serves each of them, until it is closed."""

from __future__ import annotations

import ipaddress
import logging
import socket
import ssl
import threading
from contextlib import suppress
from typing import Final

from rmqstore_spark.base.secretfiles import read_file
from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import OptionError, ServiceError
from rmqstore_spark.ha.slave_connection import SlaveConnection
from rmqstore_spark.remoting.addresses import why_not_bound
from rmqstore_spark.remoting.tls import server_context

_log = logging.getLogger(__name__)

_PAUSE_S: Final = 0.1
_MOST_SLAVES: Final = 64
_BACKLOG: Final = 16


class Master:
    """Serves the log of a store to slaves, from its construction until `close`.

    Args:
        store: the store; it is a master, or becomes one.

    Attributes:
        address: where slaves connect, as `host:port`: at `brokerIP1` if it listens on all
            addresses.

    Raises:
        OptionError: there is no port for it, or a file of `haTlsEnable` cannot be used.
        ServiceError: the address cannot be bound.
    """

    def __init__(self, store: StoreWriter) -> None:
        config = store.config
        self._store = store
        self._allowed = [
            ipaddress.ip_network(part.strip()) for part in config.ha_allowed_addresses.split(",")
        ]
        self._tls = _tls(config) if config.ha_tls_enable else None
        self._lock = threading.Lock()
        self._connections: list[SlaveConnection] = []
        self._closing = threading.Event()
        host, port = config.ha_bind_address, _port(store)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise ServiceError(
                f"The store process cannot serve slaves on {host}:{port}: {why_not_bound(error)}. "
                "Set haListenPort to a free port, or to 0 for any."
            ) from error
        host, port = self._listening.getsockname()[:2]
        if ipaddress.ip_address(host).is_unspecified:
            host = config.broker_ip1
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._thread = threading.Thread(target=self._run, name="rmqstore-ha-accept", daemon=True)
        self._thread.start()

    def stats(self) -> dict[str, object]:
        """Return metrics as JSON values."""
        slaves = self._store.slaves
        return {"slaves": len(slaves), "slaveLagBytes": max(slaves.behind_bytes(), default=0)}

    def close(self) -> None:
        """End all connections, and let no others in."""
        self._closing.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()
        with self._lock:
            connections, self._connections = self._connections, []
        for connection in connections:
            connection.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                connection, address = self._listening.accept()
            except OSError as error:
                if self._closing.is_set():
                    return
                _log.warning("A slave could not connect: %s", error)
                self._closing.wait(_PAUSE_S)  # accept fails at once while there are no descriptors
                continue
            try:
                self._admit(connection, str(address[0]), int(address[1]))
            except Exception as error:  # noqa: BLE001 - one slave must not keep others out
                connection.close()
                _log.warning("A slave could not connect: %s", error)

    def _admit(self, connection: socket.socket, host: str, port: int) -> None:
        address = ipaddress.ip_address(host.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        refusal = ""
        if not any(address in network for network in self._allowed):
            refusal = "it is not among haAllowedAddresses"
        elif len(self._connections) >= _MOST_SLAVES:
            refusal = f"{_MOST_SLAVES} slaves are connected"
        if refusal:
            _log.warning("The slave %s was rejected: %s.", host, refusal)
            connection.close()
            return
        peer = f"{host}:{port}"
        made = SlaveConnection(connection, peer, self._store, self._forget, self._tls)
        with self._lock:
            self._connections.append(made)
        made.start()

    def _forget(self, ended: SlaveConnection) -> None:
        with self._lock, suppress(ValueError):  # `close` has taken them all
            self._connections.remove(ended)


def _tls(config: StoreConfig) -> ssl.SSLContext:
    cert, key = config.tls_server_cert_path, config.tls_server_key_path
    if not (cert and key):
        raise OptionError(
            "haTlsEnable=true at a master needs tlsServerCertPath and tlsServerKeyPath."
        )
    read_file(key, "private key", secret=True)  # others must not be able to read it
    return server_context(cert, key, config.tls_server_trust_cert_path)


def _port(store: StoreWriter) -> int:
    config = store.config
    if config.ha_listen_port >= 0:
        return config.ha_listen_port
    if config.store_port == 65_535:
        raise OptionError("listenPort + 1 is not a port. Set haListenPort.")
    return config.store_port + 1
