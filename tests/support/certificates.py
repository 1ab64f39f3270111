"""Certificates for tests of TLS, made by openssl."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

__all__ = ["Certificates", "make_certificates", "sign", "trusting"]

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Certificates(NamedTuple):
    """Files in PEM: an authority, and what it signed for a server and for a client."""

    ca: str
    server_cert: str
    server_key: str
    client_cert: str
    client_key: str


def trusting() -> ssl.SSLContext:
    """The context of a client that accepts any certificate, as RocketMQ's do by default."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def make_certificates(folder: Path) -> Certificates:
    """Make an authority and two certificates; skips the test where there is no openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    folder.mkdir(exist_ok=True)
    _openssl(
        *(folder, "req", "-x509", *_NEW_KEY, "-keyout", "ca.key", "-out", "ca.pem"),
        *("-days", "2", "-subj", "/CN=authority"),
    )
    names = "DNS:localhost,IP:127.0.0.1"
    ca = str(folder / "ca.pem")
    return Certificates(ca, *sign(folder, "server", names), *sign(folder, "client", names))


def sign(folder: Path, name: str, alternative_names: str) -> tuple[str, str]:
    """Have the authority of a folder sign one more certificate: its file, and that of its key."""
    (folder / "extensions").write_text(f"subjectAltName={alternative_names}\n")
    _openssl(
        *(folder, "req", *_NEW_KEY, "-keyout", f"{name}.key"),
        *("-out", f"{name}.csr", "-subj", f"/CN={name}"),
    )
    _openssl(
        *(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key"),
        *("-CAcreateserial", "-days", "2", "-out", f"{name}.pem", "-extfile", "extensions"),
    )
    (folder / f"{name}.key").chmod(0o600)
    return str(folder / f"{name}.pem"), str(folder / f"{name}.key")


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
