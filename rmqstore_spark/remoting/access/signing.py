"""Signatures of requests (upstream: AclUtils, AclSigner, AclClientRPCHook).

A signature covers the values of a request's fields in the order of their names, and the body, one
behind the other. It covers neither the names nor the code, and nothing in it is used only once:
who can read a connection can send what it read again. Only TLS prevents that.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from rmqstore_spark.remoting.codec.command import Command

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"


class SecretKey:
    """A secret that signs. It is never shown, and signatures are compared in constant time.

    Args:
        secret: the secret.
    """

    __slots__ = ("_begun", "_logins")

    def __init__(self, secret: str) -> None:
        self._begun = hmac.new(secret.encode(), digestmod="sha1")
        # Another digest: who asks for a login cannot get the signature of a request for it.
        self._logins = hmac.new(secret.encode(), digestmod="sha256")

    def __repr__(self) -> str:
        return "SecretKey(...)"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a secret is not sent anywhere")

    def signature(
        self, fields: Mapping[str, str], body: bytes, unsigned: Collection[str] = (SIGNATURE,)
    ) -> str:
        """Return the signature of a request.

        Args:
            fields: of its header, as they were sent.
            body: the body.
            unsigned: names of fields that are left out.
        """
        begun = self._begun.copy()
        values = "".join(fields[name] for name in _in_order(fields) if name not in unsigned)
        begun.update(values.encode("utf-8", "replace"))
        begun.update(body)
        return base64.b64encode(begun.digest()).decode()

    def has_signed(self, request: Command, unsigned: Collection[str] = (SIGNATURE,)) -> bool:
        """Return whether a request has the signature of this secret.

        Args:
            request: the request.
            unsigned: names of fields that the signature does not cover.
        """
        given = request.ext.get(SIGNATURE, "").encode("utf-8", "replace")
        right = self.signature(request.ext, request.body, unsigned)
        return hmac.compare_digest(given, right.encode())

    def proof(self, challenge: bytes) -> bytes:
        """Return what shows that this side knows the secret (HMAC-SHA256 of the challenge)."""
        begun = self._logins.copy()
        begun.update(challenge)
        return begun.digest()

    def has_proved(self, challenge: bytes, proof: bytes) -> bool:
        """Return whether the other side has shown that it knows the secret."""
        return hmac.compare_digest(self.proof(challenge), proof)


class SessionCredentials:
    """With which this side signs its own requests.

    Args:
        access_key: the name of the account.
        secret: its secret.

    Attributes:
        access_key: the name of the account.
    """

    def __init__(self, access_key: str, secret: str) -> None:
        self.access_key = access_key
        self._key = SecretKey(secret)

    def __repr__(self) -> str:
        return f"SessionCredentials({self.access_key!r}, ...)"

    def proof(self, challenge: bytes) -> bytes:
        """Return the answer to a challenge; see `SecretKey.proof`."""
        return self._key.proof(challenge)

    def signed(self, request: Command) -> Command:
        """Return a request with access key and signature; the given one stays as it is."""
        fields = {**request.ext, ACCESS_KEY: self.access_key}
        fields[SIGNATURE] = self._key.signature(fields, request.body)
        return replace(request, ext=fields)


def _in_order(fields: Mapping[str, str]) -> list[str]:
    """Return names in the order of Java's strings: that of their UTF-16 units."""
    if all(map(str.isascii, fields)):
        return sorted(fields)
    return sorted(fields, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
