"""What protects the port of a store process: accounts, TLS, and this process's own identity.

Upstream: NettyServerConfig, TlsSystemConfig, PlainAccessValidator.
"""

from __future__ import annotations

import ipaddress
import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from rmqstore_spark.broker.acl.files import AccountFiles
from rmqstore_spark.broker.acl.gate import AccountGate
from rmqstore_spark.consensus.driver.protection import MemberProtection, MemberProtectionKeys
from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.errors import OptionError
from rmqstore_spark.remoting.access.identity import ClientIdentity
from rmqstore_spark.remoting.tls import ServerTls, TlsMode

_log = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class Protection:
    """What a configuration says about it.

    Attributes:
        accounts: of the clients; None if they need none.
        identity: with which this side talks to name servers.
        tls: which connections are accepted.
        member: of a member of a DLedger group; None: the store is none.
    """

    accounts: AccountFiles | None
    identity: ClientIdentity
    tls: ServerTls
    member: MemberProtection | None
    _files: AccountFiles | None

    @classmethod
    def of(cls, config: StoreConfig) -> Protection:
        """Read the files that a configuration names.

        Raises:
            OptionError: one is missing, wrong, accessible to others, or has no use; or the
                configuration lets strangers in.
        """
        config.check_client_tls()
        files = _accounts(config)
        found = cls(
            files if config.acl_enable else None, ClientIdentity.of(config), ServerTls.of(config),
            protection_of_member(config, files) if config.enable_d_leger_commit_log else None,
            files,
        )  # fmt: skip
        if config.listen_port >= 0 and not ipaddress.ip_address(config.bind_address).is_loopback:
            found._check_open(config)
        return found

    def watched(self) -> AbstractContextManager[None]:
        """Look at the files with accounts from time to time, within the context."""
        return nullcontext() if self._files is None else self._files.watched()

    def _check_open(self, config: StoreConfig) -> None:
        """Refuse to let strangers in, unless that is wanted."""
        lacks = []
        accounts = self.accounts
        is_open = accounts is None or accounts.accounts.white.has_everybody
        if is_open and not config.tls_server_trust_cert_path:
            lacks.append(
                "anyone could read and write all messages (set aclEnable and aclPath, or "
                "tlsServerTrustCertPath)"
            )
        if self.tls.mode is not TlsMode.ENFORCING:
            lacks.append(
                "its connections may be unencrypted (set tlsServerCertPath, tlsServerKeyPath and "
                "tlsServerMode=enforcing)"
            )
        if not lacks:
            return
        told = f"{config.bind_address} can be reached from other machines: {' and '.join(lacks)}."
        if not config.allow_unprotected:
            raise OptionError(
                f"bindAddress {told} Listen on 127.0.0.1, or set allowUnprotected=true if this is "
                "what you want."
            )
        _log.warning("%s", told)


def protection_of_member(
    config: MemberProtectionKeys, accounts: AccountFiles | None
) -> MemberProtection:
    """Return what a configuration says about the port of a member: its peers are administrators.

    Args:
        config: the configuration.
        accounts: those of `aclPath`.

    Raises:
        OptionError: a file is missing, wrong, or accessible to others; or the keys contradict each
            other.
    """
    return MemberProtection.of(config, None if accounts is None else AccountGate(accounts, {}))


def _accounts(config: StoreConfig) -> AccountFiles | None:
    is_member = config.enable_d_leger_commit_log and config.d_leger_acl_enable
    if not config.acl_enable and not is_member:
        return None
    return account_files(config.acl_path, "aclEnable" if config.acl_enable else "dLegerAclEnable")


def account_files(path: str, key: str) -> AccountFiles:
    """Read the files with accounts.

    Args:
        path: `aclPath`.
        key: the key that needs them.

    Raises:
        OptionError: there are none, or one is wrong.
    """
    if not path:
        raise OptionError(
            f"{key}=true needs aclPath: the file with the accounts, such as conf/plain_acl.yml."
        )
    return AccountFiles(path)
