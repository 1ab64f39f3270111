"""How a client shows that it knows the secret of an account, without sending it.

The server sends a challenge. The client answers with a nonce of its own, and the HMAC-SHA256, with
the secret as its key, of a text that nothing else signs, the nonce, the challenge, and the SHA-256
of the server's certificate if the connection is encrypted. So an answer counts for one challenge,
and for the server that the client has found. Without TLS, others on the way can use the connection.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final, Protocol

from rmqstore_spark.errors import FrameError

NONCE_BYTES: Final = 32
_PURPOSE: Final = b"rmqstore login\0"


class Prover(Protocol):
    """Knows the secret."""

    def proof(self, message: bytes) -> bytes:
        """Return the HMAC-SHA256 of a message."""


def fingerprint(certificate: bytes | None) -> bytes:
    """Return what stands for a server's certificate (DER); nothing without one."""
    return hashlib.sha256(certificate).digest() if certificate else b""


def login_answer(challenge: bytes, prover: Prover, server: bytes) -> bytes:
    """Return the answer to a challenge.

    Args:
        challenge: what the server sent.
        prover: has the secret.
        server: fingerprint of its certificate; empty on a plain connection.

    Raises:
        FrameError: it is not a challenge.
    """
    if len(challenge) != NONCE_BYTES:
        raise FrameError(f"a challenge has {len(challenge)} bytes")
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + prover.proof(_PURPOSE + nonce + challenge + server)


def asked_to_prove(challenge: bytes, answer: bytes, server: bytes) -> tuple[bytes, bytes]:
    """Return the message that an answer must have signed, and what it says that its HMAC is."""
    nonce, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    return _PURPOSE + nonce + challenge + server, proof
