"""The configuration of a name server: one table of keys with RocketMQ's names.

The names are those of `NamesrvConfig` and `NettyServerConfig`, so that one file can serve both.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rmqstore_spark.base.settings import settings_of
from rmqstore_spark.engine.config.key import (
    address,
    as_properties,
    choice,
    flag,
    number,
    read_values,
    text,
)
from rmqstore_spark.engine.config.properties_file import read_properties

_log = logging.getLogger(__name__)

NAMESRV_PAGE: Final = "docs/namesrv.md"

_HOUR_MS: Final = 3_600_000
_PLACE: Final = "Place"
_BROKERS: Final = "Brokers and topics"
_LIMITS: Final = "Limits"


@dataclass(frozen=True)
class NamesrvConfig:
    """The configuration of a name server. The table describes each field with its key."""

    listen_port: int = number(
        9876, 0, 65_535, "Port to listen on (`--port`); 0: any free one.", group=_PLACE,
    )  # fmt: skip
    bind_address: str = text(
        "127.0.0.1", "Address to listen on (`--host`).", group=_PLACE, kind="IP address",
        own=True, check=address,
    )  # fmt: skip
    kv_config_path: str = text(
        "", "File with the key-value configuration; empty: `~/namesrv/kvConfig.json`.",
        group=_PLACE, kind="path",
    )  # fmt: skip
    config_store_path: str = text(
        "", "File to which changes of this configuration are written; empty: the file of "
        "`--config`, or `~/namesrv/namesrv.properties`.", group=_PLACE, kind="path",
    )  # fmt: skip

    tls_server_mode: str = choice(
        "permissive", ("permissive", "enforcing", "disabled"), "Which connections are accepted if "
        "`tlsServerCertPath` is given: plain and TLS, TLS only, or plain only.",
        group=_PLACE, own=True,
    )  # fmt: skip
    tls_server_cert_path: str = text(
        "", "Certificate for TLS (PEM).", group=_PLACE, kind="path", own=True,
    )  # fmt: skip
    tls_server_key_path: str = text(
        "", "Its private key (PEM), without a password.", group=_PLACE, kind="path", own=True,
    )  # fmt: skip
    tls_server_trust_cert_path: str = text(
        "", "CA certificates (PEM); TLS clients must then have a certificate signed by one.",
        group=_PLACE, kind="path", own=True,
    )  # fmt: skip

    order_message_enable: bool = flag(
        False, "Give the order of a topic's queues (namespace `ORDER_TOPIC_CONFIG`) with its "
        "route.", group=_BROKERS,
    )  # fmt: skip
    broker_channel_expired_time: int = number(
        120_000, 100, _HOUR_MS, "A broker that has not registered for this time is removed.",
        group=_BROKERS, unit="ms", own=True,
    )  # fmt: skip
    scan_not_active_broker_interval: int = number(
        10_000, 10, _HOUR_MS, "How often such brokers are looked for.", group=_BROKERS,
        unit="ms", own=True,
    )  # fmt: skip

    server_channel_max_idle_time_seconds: int = number(
        120, 1, 3600, "A connection on which nothing comes or goes for this time is closed.",
        group=_LIMITS, unit="s",
    )  # fmt: skip
    max_connections: int = number(
        20_000, 1, 1_000_000, "Most connections at a time; others are closed at once.",
        group=_LIMITS, own=True,
    )  # fmt: skip
    max_held_bytes: int = number(
        256 << 20, 1 << 20, 1 << 40, "Most bytes of requests in memory, and half of it of answers. "
        "Larger requests wait until there is room; who does not read its answers makes way.",
        group=_LIMITS, unit="bytes", own=True,
    )  # fmt: skip
    max_brokers: int = number(
        10_000, 1, 1_000_000, "Most brokers, masters and slaves; others are refused.",
        group=_LIMITS, own=True,
    )  # fmt: skip
    max_topic_entries: int = number(
        2_000_000, 1, 100_000_000, "Most topics, each counted once for every broker that has it. "
        "A registration with more is refused.", group=_LIMITS, own=True,
    )  # fmt: skip

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> NamesrvConfig:
        """Read a properties file. Keys that it does not name have their defaults.

        Raises:
            OptionError: the file cannot be read, names an unknown key, or has a wrong value.
        """
        read = cls().with_overrides(read_properties(path), source=f"{path}: ")
        if read.config_store_path:
            return read
        return replace(read, config_store_path=os.path.abspath(path))

    def with_overrides(self, values: Mapping[str, str], *, source: str = "") -> NamesrvConfig:
        """Return this configuration with some keys changed. Warn of keys without a meaning here.

        Args:
            values: texts by key.
            source: origin of the values, for messages.

        Raises:
            OptionError: a key is unknown, or a value is wrong.
        """
        changed, unused = read_values(values, _BY_NAME, UNUSED_KEYS, source, NAMESRV_PAGE)
        if unused:
            _log.warning(
                "%sThese keys have no meaning here and are ignored: %s.", source, ", ".join(unused)
            )
        return replace(self, **changed)

    def to_properties(self) -> str:
        """Format this configuration as a properties file."""
        return as_properties(self)

    @property
    def kv_config_file(self) -> str:
        """Path of the key-value configuration."""
        return self.kv_config_path or str(Path.home() / "namesrv" / "kvConfig.json")

    @property
    def config_store_file(self) -> str:
        """Path to which changes of this configuration are written."""
        return self.config_store_path or str(Path.home() / "namesrv" / "namesrv.properties")


KEYS: Final = settings_of(NamesrvConfig)
"""All keys, in the order of the table."""

CHANGEABLE: Final = frozenset({"orderMessageEnable"})
"""The keys that can be changed over the network. Times and limits cannot: a wrong one would remove
all brokers."""

_UNUSED: Final = """
    clusterTest configBlackList productEnvName rocketmqHome serverAsyncSemaphoreValue
    serverCallbackExecutorThreads serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable
    serverSelectorThreads serverSocketBacklog serverSocketRcvBufSize serverSocketSndBufSize
    serverWorkerThreads useEpollNativeSelector writeBufferHighWaterMark writeBufferLowWaterMark
"""
UNUSED_KEYS: Final = frozenset(_UNUSED.split())
"""The other keys of a file for RocketMQ's name server: those of its threads and buffers, and of its
tests."""

_BY_NAME: Final = {key.name: key for key in KEYS}
