"""The keys of a DLedger group, with RocketMQ's names: of stores, and of members that only vote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rmqstore_spark.engine.config.key import address, choice, flag, number, text

_GROUP: Final = "DLedger group"


def _address_or_none(word: str) -> str:
    return word and address(word)


@dataclass(frozen=True)
class GroupKeys:
    """The value of each of these keys. The table describes each field with its key."""

    enable_d_leger_commit_log: bool = flag(
        False, "The store is a member of a DLedger group: its log belongs to the group, and the "
        "group elects the master. See docs/dledger.md.", group=_GROUP,
    )  # fmt: skip
    d_leger_group: str = text("", "Name of the group.", group=_GROUP)
    d_leger_peers: str = text(
        "", "All members of the group, this one too: `n0-HOST:PORT;n1-HOST:PORT;...`.",
        group=_GROUP,
    )  # fmt: skip
    d_leger_self_id: str = text("", "Which of them this is, such as `n0`.", group=_GROUP)
    preferred_leader_id: str = text(
        "", "Ids with `;` between: while this member leads but is not one of them, it asks one "
        "that has nearly all entries to lead.", group=_GROUP,
    )  # fmt: skip
    d_leger_heartbeat_interval: int = number(
        2000, 50, 60_000, "From one heartbeat of a leader to the next. A member that hears none "
        "for three of them asks for votes. RocketMQ's brokers have 2000, so keep that in a group "
        "with one of them; otherwise the same for all members.",
        group=_GROUP, unit="ms", own=True,
    )  # fmt: skip
    d_leger_bind_address: str = text(
        "", "Address where the other members connect; the port is that of `dLegerPeers`. Without "
        "the key: loopback if `dLegerPeers` has this member there, otherwise all addresses "
        "(`0.0.0.0`), as a broker's. Without `dLegerAclEnable` or certificates, anyone who reaches "
        "the port can change the log, and the log of the process says so.",
        group=_GROUP, kind="IP address", own=True, check=_address_or_none,
    )  # fmt: skip
    d_leger_tls_server_mode: str = choice(
        "permissive", ("permissive", "enforcing", "disabled"), "Which connections this member's "
        "port accepts if `tlsServerCertPath` is given: plain and TLS, TLS only, or plain only. "
        "Members of RocketMQ have no TLS. See docs/dledger.md#accounts-and-tls.",
        group=_GROUP, own=True,
    )  # fmt: skip
    d_leger_tls_enable: bool = flag(
        False, "Connections to the other members use TLS, and nothing else: each shows "
        "`tlsServerCertPath`, which must name its host in `dLegerPeers`. It is checked with "
        "`tlsClientTrustCertPath`.", group=_GROUP, own=True,
    )  # fmt: skip
    d_leger_acl_enable: bool = flag(
        False, "Other members need an account of `aclPath` with `admin: true`, as their requests "
        "change the log. This member, as all, signs with that of `aclCredentialsPath`. Members of "
        "RocketMQ cannot sign.", group=_GROUP, own=True,
    )  # fmt: skip

    @property
    def preferred_leaders(self) -> tuple[str, ...]:
        """The ids of `preferredLeaderId`."""
        return tuple(filter(None, map(str.strip, self.preferred_leader_id.split(";"))))
