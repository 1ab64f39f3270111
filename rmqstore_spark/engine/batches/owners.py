"""The owner of a stage or a batch: the identity in the client's certificate."""

from __future__ import annotations

from typing import Final

_LONGEST: Final = 2048
"""In characters: as many as a SPIFFE id may have, the longest name in use."""


def is_identity(value: object) -> bool:
    """Return whether a value can be an identity, the empty one included."""
    return isinstance(value, str) and len(value) <= _LONGEST and (value.isprintable())


def is_another(identity: str, owner: str) -> bool:
    """Return whether a client must not touch what another client owns.

    The empty identity is that of a client of the Unix socket, or of any client if none shows a
    certificate. It owns nothing, and may touch everything.

    Args:
        identity: the client's identity.
        owner: the identity that owns the object.
    """
    return bool(identity and owner) and identity != owner
