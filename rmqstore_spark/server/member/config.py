"""The configuration of a member: keys of RocketMQ's brokers, so that one file can serve both."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from rmqstore_spark.base.settings import settings_of
from rmqstore_spark.consensus.driver.group import MemberGroup
from rmqstore_spark.engine.config.broker_keys import BROKER_KEYS, STRAY_KEYS, tell_passed_over
from rmqstore_spark.engine.config.group_keys import GroupKeys
from rmqstore_spark.engine.config.key import flag, number, read_values, text
from rmqstore_spark.engine.config.properties_file import read_properties
from rmqstore_spark.engine.config.protection_keys import ProtectionKeys
from rmqstore_spark.engine.config.table import KEYS as STORE_KEYS
from rmqstore_spark.errors import OptionError

_PAGE: Final = "docs/dledger.md"
_MEMBER: Final = "Member"


@dataclass(frozen=True)
class MemberConfig(ProtectionKeys, GroupKeys):
    """The configuration of a member. The table describes each field with its key."""

    enable_d_leger_commit_log: bool = flag(
        True, "Brokers need it in their file; `false` stops the start.", group=_MEMBER
    )
    store_path_root_dir: str = text(
        "", "Store directory (`--store`).", group=_MEMBER, kind="path",
    )  # fmt: skip
    mapped_file_size_commit_log: int = number(
        1 << 30, 1 << 16, 1 << 30, "Size of a file of the log; the same for all members.",
        group=_MEMBER, unit="bytes",
    )  # fmt: skip
    file_reserved_time: int = number(
        72, 1, 1_000_000, "A file of the log that was last written longer ago is removed.",
        group=_MEMBER, unit="hours",
    )  # fmt: skip

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> MemberConfig:
        """Read a properties file, such as a broker's. Keys that it does not name have defaults.

        Raises:
            OptionError: the file cannot be read, names an unknown key, or has a wrong value.
        """
        return cls().with_overrides(read_properties(path), source=f"{path}: ")

    def with_overrides(self, values: Mapping[str, str], *, source: str = "") -> MemberConfig:
        """Return this configuration with some keys changed. Warn of keys without a meaning here.

        Args:
            values: texts by key.
            source: origin of the values, for messages.

        Raises:
            OptionError: a key is unknown, or a value is wrong.
        """
        changed, unused = read_values(
            values, _BY_NAME, BROKER_KEYS | _OF_STORES, source, _PAGE, strays=STRAY_KEYS
        )
        tell_passed_over(unused, source)
        return replace(self, **changed)

    def group(self) -> MemberGroup:
        """Return the group that the keys name.

        Raises:
            OptionError: a key is missing or wrong, or they contradict each other.
        """
        if not self.enable_d_leger_commit_log:
            raise OptionError("enableDLegerCommitLog=false: then there is no group to be in.")
        group = MemberGroup.of(self.d_leger_group, self.d_leger_self_id, self.d_leger_peers)
        group.require_members(self.preferred_leaders)
        return group


KEYS: Final = settings_of(MemberConfig)
"""All keys, in the order of the table."""

_BY_NAME: Final = {key.name: key for key in KEYS}
_OF_STORES: Final = frozenset(key.name for key in STORE_KEYS)
