"""Reads tokens, keys and certificates from files, and keeps secrets out of texts."""

from __future__ import annotations

import hmac
import os
from typing import Final

from rmqstore_spark.errors import OptionError
from rmqstore_spark.secretfiles import read_file

__all__ = ["Token", "read_certificate", "read_key", "read_token"]

_LEAST_TOKEN: Final = 16
_MOST_TOKEN: Final = 4096


class Token:
    """A secret that both sides know. It is never shown, and compared in constant time."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return "Token(...)"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a token is not sent anywhere but in its header")

    @property
    def header(self) -> str:
        """The value that the client sends as `authorization`."""
        return f"Bearer {self._text}"

    def matches(self, header: str | None) -> bool:
        """Return whether a client's `authorization` holds this token."""
        given = (header or "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(given, self.header.encode())


def read_token(path: str | os.PathLike[str]) -> Token:
    """Read a token: the only line of a file that others may not read.

    Raises:
        OptionError: the file is missing, accessible to others, or holds no token.
    """
    text = read_file(path, "token", secret=True).decode("utf-8", "replace").strip()
    if not _LEAST_TOKEN <= len(text) <= _MOST_TOKEN or not text.isascii() or " " in text:
        raise OptionError(
            f"The file {os.fspath(path)} holds no token: it must be one line of {_LEAST_TOKEN} to "
            f"{_MOST_TOKEN} letters, digits and signs. Make one with `openssl rand -hex 32`."
        )
    if not text.isprintable():
        raise OptionError(
            f"The token in {os.fspath(path)} holds control characters or line breaks."
        )
    return Token(text)


def read_key(path: str | os.PathLike[str]) -> bytes:
    """Read a private key in PEM, from a file that others may not read.

    Raises:
        OptionError: the file is missing, accessible to others, or holds no key.
    """
    data = read_file(path, "private key", secret=True)
    if b"PRIVATE KEY-----" not in data:
        raise OptionError(f"The file {os.fspath(path)} holds no private key in PEM.")
    return data


def read_certificate(path: str | os.PathLike[str]) -> bytes:
    """Read certificates in PEM.

    Raises:
        OptionError: the file is missing or holds no certificate.
    """
    data = read_file(path, "certificate", secret=False)
    if b"-----BEGIN CERTIFICATE-----" not in data:
        raise OptionError(f"The file {os.fspath(path)} holds no certificate in PEM.")
    return data
