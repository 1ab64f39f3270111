"""The configuration of a member: keys of RocketMQ's brokers, so that one file can serve both."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from rmqstore_spark.base.settings import settings_of
from rmqstore_spark.consensus.driver.group import MemberGroup
from rmqstore_spark.consensus.timing import Timing
from rmqstore_spark.engine.config.broker_keys import BROKER_KEYS, STRAY_KEYS, tell_passed_over
from rmqstore_spark.engine.config.key import address, flag, number, read_value, text, unknown_key
from rmqstore_spark.engine.config.properties_file import read_properties
from rmqstore_spark.errors import OptionError

_PAGE: Final = "docs/dledger.md"
_MEMBER: Final = "Member"


@dataclass(frozen=True)
class MemberConfig:
    """The configuration of a member. The table describes each field with its key."""

    store_path_root_dir: str = text(
        "", "Store directory (`--store`).", group=_MEMBER, kind="path",
    )  # fmt: skip
    d_leger_group: str = text("", "Name of the group.", group=_MEMBER)
    d_leger_peers: str = text(
        "", "All members of the group, this one too: `n0-HOST:PORT;n1-HOST:PORT;...`.",
        group=_MEMBER,
    )  # fmt: skip
    d_leger_self_id: str = text("", "Which of them this is, such as `n0`.", group=_MEMBER)
    preferred_leader_id: str = text(
        "", "Ids with `;` between: while this member leads but is not one of them, it asks one "
        "that has nearly all entries to lead.", group=_MEMBER,
    )  # fmt: skip
    mapped_file_size_commit_log: int = number(
        1 << 30, 1 << 16, 1 << 30, "Size of a file of the log; the same for all members.",
        group=_MEMBER, unit="bytes",
    )  # fmt: skip
    file_reserved_time: int = number(
        72, 1, 1_000_000, "A file of the log that was last written longer ago is removed.",
        group=_MEMBER, unit="hours",
    )  # fmt: skip
    d_leger_heartbeat_interval: int = number(
        2000, 50, 60_000, "From one heartbeat of a leader to the next. A member that hears none "
        "for three of them asks for votes. RocketMQ's brokers have 2000, so keep that in a group "
        "with one of them; otherwise the same for all members.",
        group=_MEMBER, unit="ms", own=True,
    )  # fmt: skip
    bind_address: str = text(
        "0.0.0.0",  # noqa: S104 - as a broker does; the other members are on other machines
        "Address to listen on; the port is that of `dLegerPeers`.", group=_MEMBER,
        kind="IP address", own=True, check=address,
    )  # fmt: skip
    enable_d_leger_commit_log: bool = flag(
        True, "Brokers need it in their file; `false` stops the start.", group=_MEMBER
    )

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
        changed = {}
        unused = []
        for name, given in values.items():
            key = _BY_NAME.get(name)
            if key is not None:
                changed[key.attribute] = read_value(key, name, given, source)
            elif name in BROKER_KEYS or name in STRAY_KEYS:
                unused.append(name)
            else:
                known = [*_BY_NAME, *BROKER_KEYS]
                raise OptionError(f"{source}{unknown_key(name, known, _PAGE)}")
        tell_passed_over(unused, source)
        return replace(self, **changed)

    def group(self) -> MemberGroup:
        """Return the group that the keys name.

        Raises:
            OptionError: a key is missing or wrong, or they contradict each other.
        """
        if not self.enable_d_leger_commit_log:
            raise OptionError("enableDLegerCommitLog=false: then there is no group to be in.")
        return MemberGroup.of(self.d_leger_group, self.d_leger_self_id, self.d_leger_peers)

    @property
    def timing(self) -> Timing:
        """How long the member waits: DLedger's times, if the interval is its."""
        return Timing.of(self.d_leger_heartbeat_interval)

    @property
    def preferred_leaders(self) -> tuple[str, ...]:
        """The ids of `preferredLeaderId`."""
        return tuple(filter(None, map(str.strip, self.preferred_leader_id.split(";"))))


KEYS: Final = settings_of(MemberConfig)
"""All keys, in the order of the table."""

_BY_NAME: Final = {key.name: key for key in KEYS}
