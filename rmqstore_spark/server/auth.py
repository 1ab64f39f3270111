"""Access to a store process: where it may listen, and how its clients authenticate.

Loopback connections need neither. All others are encrypted, and their clients show a token, a
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
    """The credentials of a store process, and those that it demands of its clients.

    Attributes:
        token: the token that clients must show; None if they need none.
        tls: the TLS context of TCP connections, which also demands client certificates if it is
            configured to; None without TLS.
    """

    token: Token | None = None
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(cls, config: StoreConfig) -> Security:
        """Read the files that a configuration names.

        Raises:
            OptionError: a file cannot be used, or others can reach the address without TLS and a
                token or client certificates.
        """
        if bool(config.tls_cert_path) != bool(config.tls_key_path):
            raise OptionError("tlsCertPath and tlsKeyPath belong together: give both, or neither.")
        if config.tls_trust_cert_path and not config.tls_cert_path:
            raise OptionError(
                "tlsTrustCertPath requires certificates of clients, which needs TLS: give "
                "tlsCertPath and tlsKeyPath too."
            )
        _require_closed(config)
        return cls(
            read_token(config.token_path) if config.token_path else None,
            _tls(config) if config.tls_cert_path else None,
        )


def _tls(config: StoreConfig) -> ssl.SSLContext:
    """Return the server's TLS context.

    Raises:
        OptionError: a file cannot be used, or the key does not belong to the certificate.
    """
    read_certificate(config.tls_cert_path)
    read_key(config.tls_key_path)  # others must not be able to read it
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.tls_cert_path, config.tls_key_path, _no_passphrase)
        if config.tls_trust_cert_path:
            read_certificate(config.tls_trust_cert_path)
            context.load_verify_locations(config.tls_trust_cert_path)
            context.verify_mode = ssl.CERT_REQUIRED
    except (ssl.SSLError, OSError, ValueError) as error:
        raise OptionError(
            f"TLS cannot be set up: {error}. Check tlsCertPath, tlsKeyPath and "
            "tlsTrustCertPath: they must be PEM files, and the key must belong to the "
            "certificate and have no passphrase."
        ) from None
    return context


def _no_passphrase() -> str:
    raise ValueError("the private key has a passphrase")


def _require_closed(config: StoreConfig) -> None:
    """Refuse a configuration that lets strangers reach the store."""
    if config.flight_port < 0 or ipaddress.ip_address(config.bind_address).is_loopback:
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
