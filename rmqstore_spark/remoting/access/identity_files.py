"""Names the files with this side's credentials. Does not import ssl."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class IdentityFiles:
    """What `identity.ClientIdentity` is made of: names of files, which may travel and be shown.

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
