"""Who may reach a store process: where it may listen, what it shows, whom it asks for a token.

Loopback needs nothing. Everywhere else the connection is encrypted, and clients show a token, a
certificate, or both.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmqstore_spark.errors import OptionError
from rmqstore_spark.wire.secrets import Token, read_certificate, read_key, read_token

if TYPE_CHECKING:
    from rmqstore_spark.writer.config import StoreConfig

__all__ = ["Security"]


@dataclass(frozen=True, repr=False)
class Security:
    """What a store process shows to its clients and wants to see of them.

    Attributes:
        token: what clients show; None: nothing.
        certificate, key: of the process, PEM; None: no encryption.
        client_ca: certificates that those of clients are signed by; None: clients need none.
    """

    token: Token | None = None
    certificate: bytes | None = None
    key: bytes | None = None
    client_ca: bytes | None = None

    @property
    def is_encrypted(self) -> bool:
        """Whether connections over TCP are encrypted."""
        return self.certificate is not None

    @classmethod
    def of(cls, config: StoreConfig) -> Security:
        """Read the files that a configuration names.

        Raises:
            OptionError: a file cannot be used, there is neither a port nor a socket, or the address
                is open to others without TLS and a token or clients' certificates.
        """
        if bool(config.tls_cert_path) != bool(config.tls_key_path):
            raise OptionError("tlsCertPath and tlsKeyPath belong together: give both, or neither.")
        if config.tls_trust_cert_path and not config.tls_cert_path:
            raise OptionError(
                "tlsTrustCertPath asks clients for certificates, which needs TLS: give "
                "tlsCertPath and tlsKeyPath too."
            )
        _require_closed(config)
        return cls(
            read_token(config.token_path) if config.token_path else None,
            read_certificate(config.tls_cert_path) if config.tls_cert_path else None,
            read_key(config.tls_key_path) if config.tls_key_path else None,
            read_certificate(config.tls_trust_cert_path) if config.tls_trust_cert_path else None,
        )


def _require_closed(config: StoreConfig) -> None:
    """Refuse to listen nowhere, and where strangers can reach the store."""
    if config.flight_port < 0:
        if not config.flight_socket:
            raise OptionError(
                "flightPort=-1 leaves nothing to listen on: give flightSocket, or a port."
            )
        return
    if ipaddress.ip_address(config.bind_address).is_loopback:
        return
    if not config.tls_cert_path:
        raise OptionError(
            f"bindAddress {config.bind_address} can be reached from other machines, and the "
            "connections would not be encrypted. Give tlsCertPath and tlsKeyPath, or listen on "
            "127.0.0.1."
        )
    if not (config.token_path or config.tls_trust_cert_path):
        raise OptionError(
            f"bindAddress {config.bind_address} can be reached from other machines, and anyone "
            "could write to the store. Give tokenPath or tlsTrustCertPath, or listen on 127.0.0.1."
        )
