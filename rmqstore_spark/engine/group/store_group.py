"""The group of a store, and where the brokers of its members are.

Each member tells the others the address of its broker (`brokerIP1` and `listenPort`): a follower
copies topics and progress from the leader's. One on loopback, or one that several members have,
leads a follower on another machine to itself. It would copy nothing, and nobody would see that
before the leader is gone.
"""

from __future__ import annotations

import logging
from typing import Final

from rmqstore_spark.consensus.driver.group import MemberGroup
from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.errors import OptionError, ServiceError
from rmqstore_spark.remoting.addresses import means_this_machine, parse_address

_log = logging.getLogger(__name__)

_ALL: Final = ("0.0.0.0", "::")  # noqa: S104 - compared, where a port listens on all addresses


def check_no_group(config: StoreConfig) -> None:
    """Refuse or warn of the keys of a group if the store is in none.

    RocketMQ's brokers pass over them. A store that was meant for a group would take messages that
    no other member has, and nobody would see that before its disk is gone.

    Raises:
        OptionError: the keys of a member are given, and nothing says that the store is none.
    """
    given = {"dLegerPeers": config.d_leger_peers, "dLegerSelfId": config.d_leger_self_id}
    keys = " and ".join(name for name, value in given.items() if value)
    if config.enable_d_leger_commit_log or not keys:
        return
    if not config.says_no_group:
        raise OptionError(
            f"The configuration has {keys}, but the store is in no group without "
            "enableDLegerCommitLog=true. Set that, or remove the keys of the group."
        )
    _log.warning(
        "enableDLegerCommitLog is false, so %s is passed over: the store is in no group.", keys
    )


def brokers_of_group(config: StoreConfig) -> MemberBrokers:
    """Return the group that a store's keys name, with the brokers of its members.

    Raises:
        OptionError: a key is missing or wrong, they contradict each other, or members on other
            machines could not reach the broker of this one.
    """
    group = MemberGroup.of(config.d_leger_group, config.d_leger_self_id, config.d_leger_peers)
    group.require_members(config.preferred_leaders)
    if config.is_broker:
        _require_reachable(group, config)
    elif len(group.ids) > 1:
        _log.warning(
            "listenPort is -1, so the other members cannot copy topics, groups and progress from "
            "this one while it leads: the next leader may lack what has changed. Give a listenPort."
        )
    return MemberBrokers(group, config.host[0] if config.is_broker else "")


def _require_reachable(group: MemberGroup, config: StoreConfig) -> None:
    """Refuse a broker on loopback if other members are on other machines."""
    elsewhere = next((peer for peer in group.ids if _is_elsewhere(group, peer)), None)
    if elsewhere is None:
        return
    for key, address in (("brokerIP1", config.broker_ip1), ("bindAddress", config.bind_address)):
        if means_this_machine(address) and not (key == "bindAddress" and address in _ALL):
            raise OptionError(
                f"{key} is {address}, which other machines cannot reach, but dLegerPeers has the "
                f"member {elsewhere} on another one ({group.addresses[elsewhere]}): the others "
                "could copy neither topics nor progress from this member. Set bindAddress and "
                f"brokerIP1 to an address of {group.me} that they reach."
            )


class MemberBrokers:
    """Where the brokers of members are, as these say. Threads can share it.

    Args:
        group: the group, and which member this is.
        own: the address of this member's own broker, as `host:port`; "" without one.

    Attributes:
        group: as given.
    """

    def __init__(self, group: MemberGroup, own: str) -> None:
        self.group = group
        self._own = own
        self._known: dict[str, str] = {}
        self._silent: set[str] = set()

    def learn(self, member: str, address: str) -> str:
        """Take the address that another member tells, and return it.

        Args:
            member: its id.
            address: of its broker, as `host:port`; "" if it has none, or does not tell.

        Raises:
            ServiceError: it is none, or this member would find itself there, or another process of
                its machine.
        """
        self._known.pop(member, None)
        if not address:
            self._silent.add(member)
            return ""
        self._silent.discard(member)
        try:
            host = parse_address(address)[0]
        except ServiceError as error:
            raise ServiceError(f"The member {member} tells where its broker is: {error}") from None
        is_own = address == self._own
        if is_own or (means_this_machine(host) and _is_elsewhere(self.group, member)):
            whose = "where this member's own is" if is_own else "on this machine"
            raise ServiceError(
                f"The member {member} says that its broker is at {address}, which is {whose}. "
                "Each member needs a brokerIP1 of its own that the others reach: set it, and "
                f"bindAddress, at {member}."
            )
        self._known[member] = address
        return address

    def is_silent(self, member: str) -> bool:
        """Return whether a member was asked, and tells no address: one of RocketMQ's, or alone."""
        return member in self._silent

    def place(self, member: str) -> str:
        """Return a member's id and where it is, for people."""
        if broker := self._known.get(member):
            return f"{member}, whose broker is at {broker}"
        port = self.group.addresses.get(member)
        return f"{member}, whose port for other members is {port}" if port else member


def _is_elsewhere(group: MemberGroup, member: str) -> bool:
    """Return whether a member is on another machine than this one, as far as `dLegerPeers` says."""
    host, own = (parse_address(group.addresses[each])[0] for each in (member, group.me))
    return host != own and not means_this_machine(host)
