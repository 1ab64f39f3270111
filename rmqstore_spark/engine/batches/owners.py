"""Whose something is, where clients show certificates: the identity of a certificate owns it."""

from __future__ import annotations

from typing import Final

__all__ = ["is_another", "is_identity"]

_LONGEST: Final = 2048
"""Characters: what a SPIFFE id may have, the longest name in use."""


def is_identity(value: object) -> bool:
    """Whether something can be an identity, the empty one included."""
    return isinstance(value, str) and len(value) <= _LONGEST and (value.isprintable())


def is_another(identity: str, owner: str) -> bool:
    """Whether a client must keep off what another one owns.

    An empty identity is that of nobody in particular: a client of the unix socket, or any client
    where none shows a certificate. It owns nothing, and nothing is kept from it.

    Args:
        identity: the client's.
        owner: of what it wants to touch.
    """
    return bool(identity and owner) and identity != owner
