"""The access key and the TLS with which this process calls others.

The access key is in a file of the form of RocketMQ's `tools.yml`. Importing this module, as each
task of Spark does, imports neither ssl nor yaml nor the codec.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from rmqstore_spark.base.secretfiles import read_file
from rmqstore_spark.errors import OptionError

if TYPE_CHECKING:
    import ssl

    from rmqstore_spark.remoting.access.signing import SessionCredentials
    from rmqstore_spark.remoting.access.yaml_values import YamlValue

_ACCESS_KEY: Final = "accessKey"
_SECRET_KEY: Final = "secretKey"  # noqa: S105 - the name of the field
_LEAST: Final = 1
"""Characters of a key of this side: RocketMQ 5 has users with names and passwords of any length."""
_MOST: Final = 255


def read_credentials(path: str | os.PathLike[str]) -> SessionCredentials:
    """Read `accessKey` and `secretKey` from a file that others may not read.

    Raises:
        OptionError: the file is missing, accessible to others, or holds anything else.
    """
    from rmqstore_spark.remoting.access.signing import SessionCredentials
    from rmqstore_spark.remoting.access.yaml_values import parse_yaml

    name = os.fspath(path)
    given = parse_yaml(name, read_file(path, "access key", secret=True))
    return SessionCredentials(*read_keys(given, given.fields((_ACCESS_KEY, _SECRET_KEY)), _LEAST))


def read_keys(of: YamlValue, fields: dict[str, YamlValue], least: int) -> tuple[str, str]:
    """Return the access key and the secret of an account.

    Args:
        of: the account.
        fields: its fields.
        least: how many characters each must have.

    Raises:
        OptionError: one is missing or too short. The error does not show the secret.
    """
    found = []
    for name in (_ACCESS_KEY, _SECRET_KEY):
        value = fields.get(name)
        if value is None:
            raise of.error(f"has no {name}")
        text = value.text()
        if not least <= len(text) <= _MOST or not text.isprintable():
            raise value.error(f"must be {least} to {_MOST} printable characters")
        found.append(text)
    access_key, secret = found
    return access_key, secret


class ClientIdentityFiles(Protocol):
    """The keys of a configuration that name its files."""

    @property
    def acl_credentials_path(self) -> str:
        """File with an access key; empty: requests are not signed."""

    @property
    def tls_client_trust_cert_path(self) -> str:
        """File of CA certificates for those of the others; empty: those of the system."""

    @property
    def tls_client_cert_path(self) -> str:
        """File of its own certificate; empty: none."""

    @property
    def tls_client_key_path(self) -> str:
        """File of the private key of that."""


class ClientIdentityKeys(ClientIdentityFiles, Protocol):
    """The keys of a configuration that say it."""

    @property
    def tls_enable(self) -> bool:
        """Whether connections use TLS."""


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
    from rmqstore_spark.remoting.tls import client_context

    trust, cert, key = (
        keys.tls_client_trust_cert_path, keys.tls_client_cert_path, keys.tls_client_key_path,
    )  # fmt: skip
    if bool(cert) != bool(key):
        raise OptionError("tlsClientCertPath and tlsClientKeyPath need each other.")
    if key:
        read_file(key, "private key", secret=True)  # others must not be able to read it
    return client_context(trust, cert, key)


@dataclass(frozen=True)
class IdentityFiles:
    """What `ClientIdentity` is made of: names of files, which may travel and be shown.

    Args:
        acl_credentials_path: file with an access key; empty: requests are not signed.
        tls_enable: whether connections use TLS.
        tls_client_trust_cert_path: CA certificates for those of the others; empty: the system's.
        tls_client_cert_path: its own certificate; empty: none.
        tls_client_key_path: the private key of that.
    """

    acl_credentials_path: str = ""
    tls_enable: bool = False
    tls_client_trust_cert_path: str = ""
    tls_client_cert_path: str = ""
    tls_client_key_path: str = ""
