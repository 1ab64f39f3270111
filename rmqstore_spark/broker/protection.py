"""What protects the port for RocketMQ's clients: accounts and TLS; and who this side is.

Upstream: NettyServerConfig, TlsSystemConfig, PlainAccessValidator.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmqstore_spark.broker.acl.files import AccountFiles
from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.errors import OptionError
from rmqstore_spark.remoting.access.identity import ClientIdentity
from rmqstore_spark.remoting.tls import PLAIN, ServerTls, TlsMode, server_context
from rmqstore_spark.secretfiles import read_file

__all__ = ["Protection"]


@dataclass(frozen=True, repr=False)
class Protection:
    """What a configuration says about it.

    Attributes:
        accounts: of the clients; None if they need none.
        identity: with which this side talks to name servers.
        tls: which connections are accepted.
    """

    accounts: AccountFiles | None
    identity: ClientIdentity
    tls: ServerTls

    @classmethod
    def of(cls, config: StoreConfig) -> Protection:
        """Read the files that a configuration names.

        Raises:
            OptionError: one is missing, wrong, accessible to others, or has no use.
        """
        config.check_client_tls()
        return cls(_accounts(config), ClientIdentity.of(config), _tls(config))


def _accounts(config: StoreConfig) -> AccountFiles | None:
    if not config.acl_enable:
        return None
    if not config.acl_path:
        raise OptionError(
            "aclEnable=true needs aclPath: the file with the accounts, such as conf/plain_acl.yml."
        )
    return AccountFiles(config.acl_path)


def _tls(config: StoreConfig) -> ServerTls:
    mode = TlsMode(config.tls_server_mode)
    cert, key = config.tls_server_cert_path, config.tls_server_key_path
    trust = config.tls_server_trust_cert_path
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
    return ServerTls(mode, server_context(cert, key, trust))
