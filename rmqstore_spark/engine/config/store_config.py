"""The configuration of a store, from a file, the environment or arguments."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rmqstore_spark.base.settings import Declaration, as_text, nearest
from rmqstore_spark.engine.config.broker_keys import (
    BROKER_KEYS,
    STRAY_KEYS,
    check_deviation,
    tell_passed_over,
)
from rmqstore_spark.engine.config.key import (
    as_properties,
    read_value,
    read_values,
    shown,
    unknown_key,
)
from rmqstore_spark.engine.config.properties_file import read_properties
from rmqstore_spark.engine.config.table import KEYS, StoreKeys
from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout.hosts import encode_host
from rmqstore_spark.layout.record.delayed import delays

_log = logging.getLogger(__name__)

ENVIRONMENT_PREFIX: Final = "RMQSTORE_"
# Variables with that prefix that are not keys of a configuration.
_OTHER_VARIABLES: Final = frozenset({"RMQSTORE_KERNEL", "RMQSTORE_FAILPOINT"})

_USUAL_PORT: Final = 10911
"""The port of a broker, in the records of a store that is not served on a port."""


@dataclass(frozen=True)
class StoreConfig(StoreKeys):
    """The configuration of a store: `StoreKeys`, checked.

    Attributes:
        says_no_group: whether a text says `enableDLegerCommitLog=false`, instead of nothing.

    Raises:
        OptionError: a value is invalid for its key.
    """

    says_no_group: bool = field(default=False, compare=False, repr=False)

    def __new__(cls, *_: Any, **given: Any) -> StoreConfig:
        """Refuse an unknown argument with a suggestion, before `__init__` raises a TypeError."""
        for name in given:
            if name not in cls.__dataclass_fields__:
                raise OptionError(_unknown_argument(name, cls.__dataclass_fields__))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for key in KEYS:
            given = getattr(self, key.attribute)
            if given is not getattr(type(self), key.attribute):  # its default
                object.__setattr__(self, key.attribute, _checked(key, given))
        if self.max_message_size > self.max_block_bytes:
            raise OptionError(
                f"maxMessageSize ({self.max_message_size}) is larger than maxBlockBytes "
                f"({self.max_block_bytes}). Lower maxMessageSize or raise maxBlockBytes."
            )

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> StoreConfig:
        """Read a properties file. Keys that it does not name have their defaults.

        Raises:
            OptionError: the file cannot be read, names an unknown key, or has a wrong value.
        """
        values = read_properties(path)
        return cls().with_overrides(values, source=f"{path}: ")

    def with_overrides(self, values: Mapping[str, str], *, source: str = "") -> StoreConfig:
        """Return this configuration with some keys changed. Warn of keys that only a broker needs.

        Args:
            values: texts by key.
            source: origin of the values, for messages.

        Raises:
            OptionError: a key is unknown, a value is wrong, or a store with it cannot be written.
        """
        told = {name for name, given in values.items() if check_deviation(name, given, source)}
        changed, others = read_values(values, _BY_NAME, BROKER_KEYS, source, strays=STRAY_KEYS)
        tell_passed_over([name for name in others if name not in told], source)
        return self._changed(changed)

    def with_environment(self, environment: Mapping[str, str] | None = None) -> StoreConfig:
        """Return this configuration with the keys changed that `RMQSTORE_...` variables set.

        Raises:
            OptionError: a value is wrong. A variable that names no key only causes a warning.
        """
        given = os.environ if environment is None else environment
        changed = {}
        for name in sorted(given):
            if not name.startswith(ENVIRONMENT_PREFIX) or name in _OTHER_VARIABLES:
                continue
            key = _BY_VARIABLE.get(name)
            if key is None:  # an orchestrator sets RMQSTORE_PORT and the like
                _log.warning("Environment: %s", unknown_key(name, _BY_VARIABLE))
                continue
            changed[key.attribute] = _read(key, name, given[name], "environment: ")
        return self._changed(changed)

    def _changed(self, values: Mapping[str, Any]) -> StoreConfig:
        is_member = values.get("enable_d_leger_commit_log")
        says_no = self.says_no_group if is_member is None else not is_member
        return replace(self, **values, says_no_group=says_no)

    def listening_on(self, port: int) -> StoreConfig:
        """Return this configuration with the port that is bound for it.

        One that takes any free port has no VIP port by default: the one below it may be anyone's.
        """
        if self.listen_port == 0 and self.vip_listen_port < 0:
            return replace(self, listen_port=port, vip_listen_port=0)
        return replace(self, listen_port=port)

    def check_client_tls(self) -> None:
        """Refuse certificates for connections to others if all of these are plain.

        Raises:
            OptionError: they are.
        """
        files = self.tls_client_trust_cert_path or self.tls_client_cert_path
        if files and not (self.tls_enable or self.ha_tls_enable or self.d_leger_tls_enable):
            raise OptionError(
                "tlsClientTrustCertPath and tlsClientCertPath need tlsEnable=true, "
                "haTlsEnable=true or dLegerTlsEnable=true."
            )

    def to_properties(self) -> str:
        """Format this configuration as a properties file."""
        return as_properties(self)

    @property
    def disk_full_ratio(self) -> float:
        """The used part of the disk, 0 to 1, above which the store refuses messages."""
        ratio = self.disk_max_used_space_ratio / 100
        return max(ratio, self.disk_space_warning_level_ratio) if self.file_reserved_time else ratio

    @property
    def delays(self) -> tuple[int, ...]:
        """Milliseconds of each delay level."""
        return delays(self.message_delay_level)

    @property
    def store_host(self) -> bytes:
        """Address and 4-byte port as in new records: 8 bytes, or 20 for IPv6."""
        return encode_host(f"{self.broker_ip1}:{self.store_port}")

    @property
    def host(self) -> tuple[str, bytes]:
        """The store's address as text (`ip:port` or `[ip]:port`), and as in new records."""
        address = f"[{self.broker_ip1}]" if self.store_host_v6 else self.broker_ip1
        return f"{address}:{self.store_port}", self.store_host

    @property
    def store_port(self) -> int:
        """The port in storeHost and msgId of new records."""
        return self.listen_port if self.listen_port > 0 else _USUAL_PORT

    @property
    def serves_spark(self) -> bool:
        """Whether a store process serves Spark and the command."""
        return self.clients != "rocketmq"

    @property
    def serves_rocketmq(self) -> bool:
        """Whether a store process serves RocketMQ's clients."""
        return self.clients != "spark" and self.listen_port >= 0

    @property
    def is_broker(self) -> bool:
        """Whether the port of a store process is a broker's.

        That of a member of a group always is: its followers copy topics and progress from it, like
        a broker's slaves. Without RocketMQ's clients, it serves followers alone.
        """
        return self.serves_rocketmq or (self.enable_d_leger_commit_log and self.listen_port >= 0)

    @property
    def store_host_v6(self) -> bool:
        """Whether storeHost is IPv6."""
        return ":" in self.broker_ip1


_BY_NAME: Final = {key.name: key for key in KEYS}
_BY_VARIABLE: Final = {ENVIRONMENT_PREFIX + key.attribute.upper(): key for key in KEYS}


def _checked(key: Declaration, given: object) -> Any:
    """Return a value as read from a file, so that a misspelt one is an error, not the default."""
    try:
        if given is None:
            raise ValueError(f"must be {key.values}")
        return key.parse(as_text(given))
    except ValueError as error:
        raise OptionError(f"{key.attribute} {error}, not {shown(str(given))}.") from None


def _read(key: Declaration, name: str, given: str, source: str) -> Any:
    check_deviation(key.name, given, source)
    return read_value(key, name, given, source)


def _unknown_argument(name: str, known: Iterable[str]) -> str:
    plain = {word.replace("_", ""): word for word in known}
    near = nearest(name.replace("_", ""), plain)  # a key of the file is written in camel case
    hint = f"Did you mean {plain[near]}?" if near else "docs/configuration.md lists all keys."
    return f"StoreConfig has no argument {shown(name)}. {hint}"
