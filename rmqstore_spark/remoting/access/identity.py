"""As whom this side talks to others: how it signs, and over which TLS."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Protocol

from rmqstore_spark.base.secretfiles import read_file
from rmqstore_spark.errors import OptionError
from rmqstore_spark.remoting.access.credentials import read_credentials
from rmqstore_spark.remoting.access.signing import SessionCredentials
from rmqstore_spark.remoting.tls import client_context

__all__ = ["ClientIdentity", "client_tls"]


class ClientIdentityKeys(Protocol):
    """The keys of a configuration that say it."""

    @property
    def acl_credentials_path(self) -> str:
        """File with an access key; empty: requests are not signed."""

    @property
    def tls_enable(self) -> bool:
        """Whether connections use TLS."""

    @property
    def tls_client_trust_cert_path(self) -> str:
        """File of CA certificates for those of the others; empty: those of the system."""

    @property
    def tls_client_cert_path(self) -> str:
        """File of its own certificate; empty: none."""

    @property
    def tls_client_key_path(self) -> str:
        """File of the private key of that."""


@dataclass(frozen=True, repr=False)
class ClientIdentity:
    """As whom this side talks to others.

    Attributes:
        credentials: with which requests are signed; None: they are not.
        tls: for connections; None: they are plain.
    """

    credentials: SessionCredentials | None = None
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(cls, keys: ClientIdentityKeys) -> ClientIdentity:
        """Read the files that a configuration names.

        Raises:
            OptionError: one is missing, wrong, or accessible to others.
        """
        path = keys.acl_credentials_path
        tls = client_tls(keys) if keys.tls_enable else None
        return cls(read_credentials(path) if path else None, tls)


def client_tls(keys: ClientIdentityKeys) -> ssl.SSLContext:
    """Return the TLS context of connections to others.

    Raises:
        OptionError: a file is missing, wrong, or accessible to others.
    """
    trust, cert, key = (
        keys.tls_client_trust_cert_path, keys.tls_client_cert_path, keys.tls_client_key_path,
    )  # fmt: skip
    if bool(cert) != bool(key):
        raise OptionError("tlsClientCertPath and tlsClientKeyPath need each other.")
    if key:
        read_file(key, "private key", secret=True)  # others must not be able to read it
    return client_context(trust, cert, key)
