"""Who may reach a store process: where it may listen, what it shows, whom it asks for a token.

Loopback needs nothing. Everywhere else the connection is encrypted, and clients show a token, a
certificate, or both.
"""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmqstore_spark.errors import OptionError
from rmqstore_spark.wire.secrets import Token, read_certificate, read_key, read_token

if TYPE_CHECKING:
    from rmqstore_spark.engine.config.store_config import StoreConfig

__all__ = ["Security"]


@dataclass(frozen=True, repr=False)
class Security:
    """What a store process shows to its clients and wants to see of them.

    Attributes:
        token: what clients show; None: nothing.
        tls: what encrypts connections over TCP, and asks clients for certificates where it is
            configured to; None: they are not encrypted.
    """

    token: Token | None = None
    tls: ssl.SSLContext | None = None

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
            _tls(config) if config.tls_cert_path else None,
        )


def _tls(config: StoreConfig) -> ssl.SSLContext:
    """What encrypts connections.

    Raises:
        OptionError: a file cannot be used, or the key is not that of the certificate.
    """
    read_certificate(config.tls_cert_path)
    read_key(config.tls_key_path)  # others must not be able to read it
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    try:
        context.load_cert_chain(config.tls_cert_path, config.tls_key_path, _no_passphrase)
        if config.tls_trust_cert_path:
            read_certificate(config.tls_trust_cert_path)
            context.load_verify_locations(config.tls_trust_cert_path)
            context.verify_mode = ssl.CERT_REQUIRED
    except (ssl.SSLError, OSError, ValueError) as error:
        raise OptionError(
            f"TLS cannot be set up: {error}. Look at tlsCertPath, tlsKeyPath and "
            "tlsTrustCertPath: PEM files, the key without a passphrase and that of the certificate."
        ) from None
    return context


def _no_passphrase() -> str:
    raise ValueError("the private key has a passphrase")


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
