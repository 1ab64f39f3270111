"""What protects a member's port, and its calls of the others: TLS, and accounts.

Members of RocketMQ have neither. With accounts, a request is signed by who sends it, and handled
when the signature is verified: what is in one that is not counts for nothing. RocketMQ's signatures
cover the header's fields and the body, not the code of a request. So members name it in a field:
the vote that somebody asked for cannot be sent again as the heartbeat of a leader.

Answers are not signed. Who can change what others send needs to be kept out by TLS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from rmqstore_spark.errors import OptionError
from rmqstore_spark.remoting.access.identity import (
    ClientIdentity,
    ClientIdentityFiles,
    IdentityFiles,
)
from rmqstore_spark.remoting.access.signing import ACCESS_KEY
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import Request
from rmqstore_spark.remoting.tls import PLAIN, ServerTls, ServerTlsFiles, TlsMode

_CODE: Final = "requestCode"


class PeerGate(Protocol):
    """Verifies who sent requests."""

    def admitted(self, requests: Sequence[Request]) -> Sequence[Request]:
        """Return the requests that may be handled; finish the others."""


class MemberProtectionKeys(ServerTlsFiles, ClientIdentityFiles, Protocol):
    """The keys of a configuration about it."""

    @property
    def d_leger_acl_enable(self) -> bool:
        """Whether the others need an account."""

    @property
    def d_leger_tls_enable(self) -> bool:
        """Whether it calls the others over TLS."""

    @property
    def d_leger_tls_server_mode(self) -> str:
        """Which connections its port accepts, if it has a certificate."""


@dataclass(frozen=True)
class _PortFiles:
    """See `ServerTlsKeys`."""

    tls_server_mode: str
    tls_server_cert_path: str
    tls_server_key_path: str
    tls_server_trust_cert_path: str


@dataclass(frozen=True, repr=False)
class MemberProtection:
    """What protects a member.

    Attributes:
        tls: which connections its port accepts.
        identity: with which it calls the others.
        gate: verifies their requests; None: nobody does.
    """

    tls: ServerTls = PLAIN
    identity: ClientIdentity = field(default_factory=ClientIdentity)
    gate: PeerGate | None = None

    @classmethod
    def of(cls, keys: MemberProtectionKeys, gate: PeerGate | None) -> MemberProtection:
        """Read the files that a configuration names.

        Args:
            keys: the configuration.
            gate: knows the accounts that `aclPath` has; needed with `dLegerAclEnable`.

        Raises:
            OptionError: a file is missing, wrong, or accessible to others; or the keys contradict
                each other.
        """
        if keys.d_leger_acl_enable and not keys.acl_credentials_path:
            raise OptionError(
                "dLegerAclEnable=true needs aclCredentialsPath: the file with the accessKey and "
                "secretKey with which this member signs what it asks the others."
            )
        if keys.d_leger_acl_enable and gate is None:
            raise OptionError(
                "dLegerAclEnable=true, and nobody here knows accounts: run the member with "
                "`rmqstore serve` or `rmqstore member`."
            )
        mode = keys.d_leger_tls_server_mode
        is_enforcing = TlsMode(mode) is TlsMode.ENFORCING
        port = _PortFiles(
            mode, keys.tls_server_cert_path, keys.tls_server_key_path,
            keys.tls_server_trust_cert_path if is_enforcing else "",
        )  # fmt: skip
        calls = IdentityFiles(
            keys.acl_credentials_path, keys.d_leger_tls_enable, keys.tls_client_trust_cert_path,
            keys.tls_client_cert_path, keys.tls_client_key_path,
        )  # fmt: skip
        own = gate if keys.d_leger_acl_enable else None
        return cls(ServerTls.of(port), ClientIdentity.of(calls), own)

    @property
    def words(self) -> str:
        """What it consists of, for people: of the port, and of calls."""
        port = {
            TlsMode.DISABLED: "plain", TlsMode.PERMISSIVE: "plain and TLS",
            TlsMode.ENFORCING: "TLS",
        }[self.tls.mode]  # fmt: skip
        calls = "plain" if self.identity.tls is None else "TLS"
        signed = "signed" if self.identity.credentials is not None else "unsigned"
        needs = "accounts" if self.gate is not None else "no accounts"
        return f"port {port}, {needs}; calls {calls}, {signed}"


def request_to(code: int, body: bytes) -> Command:
    """Return a request to another member, ready to be signed."""
    return Command(code, {_CODE: str(int(code))}, body=body)


def is_what_was_signed(request: Command) -> bool:
    """Return whether the code of a request is the one that its account has signed, if one has."""
    return ACCESS_KEY not in request.ext or request.ext.get(_CODE) == str(request.code)
