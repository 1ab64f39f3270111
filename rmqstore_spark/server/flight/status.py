"""How calls end: gRPC's status codes, and the trailers from which Arrow Flight reads errors."""

from __future__ import annotations

import base64
from typing import Final, NamedTuple
from urllib.parse import quote

__all__ = [
    "OK",
    "UNAUTHENTICATED",
    "UNAVAILABLE",
    "UNIMPLEMENTED",
    "UNKNOWN",
    "EndedError",
    "Status",
]

OK: Final = 0
UNKNOWN: Final = 2
UNIMPLEMENTED: Final = 12
UNAVAILABLE: Final = 14
UNAUTHENTICATED: Final = 16
_DETAILS: Final = {
    UNKNOWN: (5, "Failed"),
    UNIMPLEMENTED: (10, ""),
    UNAVAILABLE: (5, "Unavailable"),
    UNAUTHENTICATED: (5, "Unauthenticated"),
}
"""By gRPC's code: Arrow's code, and the word by which Arrow Flight distinguishes its errors."""

_MOST_TEXT: Final = 2000


class Status(NamedTuple):
    """How a call ends.

    Attributes:
        code: gRPC's status code.
        text: a message for people.
        details: the encoded failure for this package's clients.
    """

    code: int
    text: str = ""
    details: bytes = b""

    def trailers(self) -> list[tuple[str, str]]:
        """Return the headers that end a call, as Arrow Flight's clients read them."""
        found = [("grpc-status", str(self.code))]
        if self.code == OK:
            return found
        arrow, word = _DETAILS[self.code]
        text = self.text[:_MOST_TEXT]
        found += [
            ("grpc-message", quote(text, safe=" !#$&'()*+,-./:;<=>?@[]^_`{|}~\"")),
            ("x-arrow-status", str(arrow)),
            ("x-arrow-status-message-bin", _base64(text.encode())),
        ]
        if word:
            found.append(("x-arrow-status-detail-bin", _base64(word.encode())))
        if self.details:
            found.append(("grpc-status-details-bin", _base64(self.details)))
        return found


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


class EndedError(Exception):
    """The stream has ended: the client disconnected, or was disconnected."""
