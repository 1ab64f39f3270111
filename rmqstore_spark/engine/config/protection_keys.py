"""The keys that name files with accounts, keys and certificates: of all ports, and of all calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rmqstore_spark.engine.config.key import text

_PROTECTION: Final = "Accounts and certificates"


@dataclass(frozen=True)
class ProtectionKeys:
    """The value of each of these keys. The table describes each field with its key."""

    acl_path: str = text(
        "", "File with the accounts for `aclEnable` and `dLegerAclEnable`, such as RocketMQ's "
        "`conf/plain_acl.yml`; or a folder such as `conf`, with that file and `acl/*.yml`. Changes "
        "are noticed within seconds. Nobody but the owner and its group may read the files.",
        group=_PROTECTION, kind="path", own=True,
    )  # fmt: skip
    acl_credentials_path: str = text(
        "", "File with `accessKey` and `secretKey`, as RocketMQ's `conf/tools.yml`, with which "
        "requests to name servers, to `haMasterRemotingAddress` and to the other members of a "
        "DLedger group are signed. Nobody but the owner and its group may read it.",
        group=_PROTECTION, kind="path", own=True,
    )  # fmt: skip
    tls_server_cert_path: str = text(
        "", "Certificate of `listenPort`, of `haListenPort` with `haTlsEnable`, and of this "
        "member's port in `dLegerPeers` (PEM).", group=_PROTECTION, kind="path", own=True,
    )  # fmt: skip
    tls_server_key_path: str = text(
        "", "Its private key (PEM), without a password. Nobody but the owner and its group may "
        "read it.", group=_PROTECTION, kind="path", own=True,
    )  # fmt: skip
    tls_server_trust_cert_path: str = text(
        "", "CA certificates (PEM); those who connect must then have a certificate signed by one. "
        "Needs `tlsServerMode=enforcing`, and counts for other members with "
        "`dLegerTlsServerMode=enforcing`.", group=_PROTECTION, kind="path", own=True,
    )  # fmt: skip
    tls_client_trust_cert_path: str = text(
        "", "CA certificates (PEM) for `tlsEnable`, `haTlsEnable` and `dLegerTlsEnable`; empty: "
        "those of the system.", group=_PROTECTION, kind="path", own=True,
    )  # fmt: skip
    tls_client_cert_path: str = text(
        "", "Certificate that this side shows on those connections (PEM); empty: none.",
        group=_PROTECTION, kind="path", own=True,
    )  # fmt: skip
    tls_client_key_path: str = text(
        "", "Its private key (PEM), without a password. Nobody but the owner and its group may "
        "read it.", group=_PROTECTION, kind="path", own=True,
    )  # fmt: skip
