"""TLS: which connections of a server use it, and with which certificates.

Upstream: TlsMode, TlsHelper. As in RocketMQ, plain and TLS connections share a port. Unlike it,
there is no certificate unless one is given, and clients check that of the server.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from rmqstore_spark.base.secretfiles import read_file
from rmqstore_spark.errors import OptionError

__all__ = [
    "HANDSHAKE",
    "PLAIN",
    "ServerTls",
    "TlsMode",
    "client_context",
    "server_context",
    "tls_reason",
]

HANDSHAKE: Final = b"\x16"
"""The first byte of a TLS connection. That of a plain one is 0, since no frame has 16 MiB."""


_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"


class TlsMode(Enum):
    """Which connections a server accepts (`tls.server.mode`)."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ServerTlsFiles(Protocol):
    """The keys of a configuration that name its files."""

    @property
    def tls_server_cert_path(self) -> str:
        """File of the certificate; empty: none."""

    @property
    def tls_server_key_path(self) -> str:
        """File of the private key of that."""

    @property
    def tls_server_trust_cert_path(self) -> str:
        """File of CA certificates for those of clients; empty: they need none."""


class ServerTlsKeys(ServerTlsFiles, Protocol):
    """The keys of a configuration about it."""

    @property
    def tls_server_mode(self) -> str:
        """Which connections are accepted."""


@dataclass(frozen=True)
class ServerTls:
    """TLS of a server.

    Attributes:
        mode: which connections it accepts.
        context: its certificates; needed unless the mode is DISABLED.
        certificate: that of the server (DER); empty without one.
    """

    mode: TlsMode
    context: ssl.SSLContext | None = None
    certificate: bytes = b""

    @classmethod
    def of(cls, keys: ServerTlsKeys) -> ServerTls:
        """Read the files that a configuration names.

        Raises:
            OptionError: one is missing, wrong, accessible to others, or has no use.
        """
        mode = TlsMode(keys.tls_server_mode)
        cert, key = keys.tls_server_cert_path, keys.tls_server_key_path
        trust = keys.tls_server_trust_cert_path
        if bool(cert) != bool(key):
            raise OptionError("tlsServerCertPath and tlsServerKeyPath need each other.")
        if not cert and (trust or mode is TlsMode.ENFORCING):
            raise OptionError(
                "tlsServerTrustCertPath and tlsServerMode=enforcing need tlsServerCertPath and "
                "tlsServerKeyPath."
            )
        if trust and mode is not TlsMode.ENFORCING:
            raise OptionError(
                "tlsServerTrustCertPath needs tlsServerMode=enforcing: in permissive mode, plain "
                "connections need no certificate."
            )
        if not cert or mode is TlsMode.DISABLED:
            return PLAIN
        read_file(key, "private key", secret=True)  # others must not be able to read it
        context = server_context(cert, key, trust)
        with open(cert, encoding="ascii", errors="replace") as file:
            return cls(mode, context, _first_certificate(file.read()))


PLAIN: Final = ServerTls(TlsMode.DISABLED)


def server_context(cert_path: str, key_path: str, trust_path: str = "") -> ssl.SSLContext:
    """Return the context of a server.

    Args:
        cert_path: file of its certificate (PEM).
        key_path: file of its private key (PEM), without a password.
        trust_path: file of CA certificates; clients must then have a certificate of one of them.
            Empty: clients need none.

    Raises:
        OptionError: a file cannot be read, or does not have what it should.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    _load(context, cert_path, key_path)
    if trust_path:
        _trust(context, trust_path)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(trust_path: str = "", cert_path: str = "", key_path: str = "") -> ssl.SSLContext:
    """Return the context of a client.

    Args:
        trust_path: file of CA certificates for that of the server; empty: those of the system.
        cert_path: file of its own certificate (PEM); empty: none.
        key_path: file of its private key (PEM), without a password.

    Raises:
        OptionError: a file cannot be read, or does not have what it should.
    """
    context = ssl.create_default_context()
    if trust_path:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _trust(context, trust_path)
    if cert_path:
        _load(context, cert_path, key_path)
    return context


def _first_certificate(pem: str) -> bytes:
    begin, end = pem.index(_BEGIN), pem.index(_END) + len(_END)
    return ssl.PEM_cert_to_DER_cert(pem[begin:end])


def tls_reason(error: Exception) -> str:
    """Return why something failed, in the words of OpenSSL if it was there."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message).removesuffix(".")
    said = error.reason if isinstance(error, ssl.SSLError) else None
    return (said or str(error)).replace("_", " ").lower()


def _load(context: ssl.SSLContext, cert_path: str, key_path: str) -> None:
    for path in (cert_path, key_path):
        _check_file(path)
    try:
        context.load_cert_chain(cert_path, key_path, password="")
    except (ssl.SSLError, ValueError) as error:
        raise OptionError(
            f"{cert_path} and {key_path} are not a certificate and its private key without a "
            f"password, in PEM: {tls_reason(error)}."
        ) from error


def _trust(context: ssl.SSLContext, path: str) -> None:
    _check_file(path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise OptionError(f"{path} has no CA certificates in PEM: {tls_reason(error)}.") from error


def _check_file(path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise OptionError(f"{path} could not be read: {error.strerror or error}.") from error
