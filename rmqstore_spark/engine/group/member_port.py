"""Where a member listens for the others, and a warning if anyone could change its log there."""

from __future__ import annotations

import logging
import socket
import ssl
from typing import Final

from rmqstore_spark.consensus.driver.group import MemberGroup
from rmqstore_spark.consensus.driver.protection import MemberProtection
from rmqstore_spark.remoting.addresses import means_this_machine, parse_address
from rmqstore_spark.remoting.tls import TlsMode

_log = logging.getLogger(__name__)

_ALL: Final = "0.0.0.0"  # noqa: S104 - as a broker does; the other members are on other machines
_LOOPBACK: Final = "127.0.0.1"


def bound_member_port(
    group: MemberGroup, given: str, protection: MemberProtection
) -> socket.socket:
    """Return a socket that is bound to a member's port, and does not listen yet.

    Args:
        group: which member this is, and where the others expect it.
        given: `dLegerBindAddress`; "" without it.
        protection: of the port.

    Raises:
        ServiceError: it cannot be bound.
    """
    address = given or _default(group)
    bound = group.bound(address)
    if not _is_loopback(address) and not _is_protected(protection):
        _log.warning(
            "The port for other members, %s:%d, can be reached from other machines, and anyone who "
            "reaches it can change the log: have it in a network of the members alone, or give all "
            "members dLegerAclEnable=true or certificates. See docs/dledger.md#accounts-and-tls.",
            address, group.port,
        )  # fmt: skip
    return bound


def _default(group: MemberGroup) -> str:
    """Return where this member listens if no key says it."""
    host = parse_address(group.addresses[group.me])[0]
    if not _is_loopback(host):
        return _ALL
    return host if ":" in host or host.startswith("127.") else _LOOPBACK


def _is_loopback(host: str) -> bool:
    return means_this_machine(host) and host not in (_ALL, "::")


def _is_protected(protection: MemberProtection) -> bool:
    """Return whether members need an account or a certificate."""
    tls = protection.tls
    needs_certificate = (
        tls.mode is TlsMode.ENFORCING
        and tls.context is not None
        and tls.context.verify_mode is ssl.CERT_REQUIRED
    )
    return protection.gate is not None or needs_certificate
