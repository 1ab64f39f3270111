"""What protects the port of a store process: accounts, TLS, and this process's own identity.

Upstream: NettyServerConfig, TlsSystemConfig, PlainAccessValidator.
"""

from __future__ import annotations

import ipaddress
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from rmqstore_spark.broker.acl.files import AccountFiles
from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.errors import OptionError
from rmqstore_spark.remoting.access.identity import ClientIdentity
from rmqstore_spark.remoting.tls import ServerTls, TlsMode

_log = logging.getLogger(__name__)

_RELOAD_SECONDS: Final = 1.0


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
            OptionError: one is missing, wrong, accessible to others, or has no use; or the
                configuration lets strangers in.
        """
        config.check_client_tls()
        found = cls(_accounts(config), ClientIdentity.of(config), ServerTls.of(config))
        if config.listen_port >= 0 and not ipaddress.ip_address(config.bind_address).is_loopback:
            found._check_open(config)
        return found

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look at the files with accounts from time to time, within the context."""
        if self.accounts is None:
            yield
            return
        ended = threading.Event()
        thread = threading.Thread(
            target=_reload, args=(self.accounts, ended), name="rmqstore-accounts", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

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


def _reload(accounts: AccountFiles, ended: threading.Event) -> None:
    while not ended.wait(_RELOAD_SECONDS):
        try:
            accounts.reload()
        except Exception:  # noqa: BLE001 - they would never be read again
            _log.exception("The accounts could not be read again; they stay as they were.")


def _accounts(config: StoreConfig) -> AccountFiles | None:
    if not config.acl_enable:
        return None
    if not config.acl_path:
        raise OptionError(
            "aclEnable=true needs aclPath: the file with the accounts, such as conf/plain_acl.yml."
        )
    return AccountFiles(config.acl_path)
