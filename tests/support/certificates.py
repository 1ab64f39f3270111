"""Certificates for tests of TLS, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

__all__ = ["Certificates", "make_certificates"]


class Certificates(NamedTuple):
    """Files in PEM: an authority, and what it signed for a server and for a client."""

    ca: str
    server_cert: str
    server_key: str
    client_cert: str
    client_key: str


def make_certificates(folder: Path) -> Certificates:
    """Make an authority and two certificates; skips the test where there is no openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    folder.mkdir(exist_ok=True)
    extensions = folder / "extensions"
    extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")

    def run(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    run(
        *("req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem"),
        *("-days", "2", "-subj", "/CN=authority"),
    )
    for name in ("server", "client"):
        run(
            "req", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}"
        )
        run(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-days", "2", "-out", f"{name}.pem", "-extfile", "extensions"),
        )
        (folder / f"{name}.key").chmod(0o600)
    files = ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")
    return Certificates(*(str(folder / name) for name in files))
