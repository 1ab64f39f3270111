"""What a browser asks for, checked, and what it gets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

_MOST_FIELDS: Final = 16
_NUMBER: Final = re.compile(r"[0-9]{1,18}")

HEADERS: Final = ("Host", "Authorization", "Sec-Fetch-Site", "Sec-Fetch-Mode")
"""The headers of a request that are looked at."""

HTML: Final = "text/html; charset=utf-8"


@dataclass(frozen=True)
class StatusAnswer:
    """An answer.

    Attributes:
        body: its bytes.
        kind: their media type.
        status: the status.
        headers: further ones.
    """

    body: bytes
    kind: str = HTML
    status: HTTPStatus = HTTPStatus.OK
    headers: tuple[tuple[str, str], ...] = ()


class Unanswerable(Exception):
    """A request gets another answer than a page.

    Args:
        status: which.
        text: what is wrong, and what to do.
        headers: further ones of the answer.
    """

    def __init__(self, status: HTTPStatus, text: str, *headers: tuple[str, str]) -> None:
        self.status = status
        self.text = text
        self.headers = headers
        super().__init__(status, text)


@dataclass(frozen=True)
class Asked:
    """What is asked for.

    Attributes:
        path: the path, percent signs included: no page has any.
        fields: the fields of the query, by name; of those with one name, the first.
        host: the address of the client.
        headers: those of HEADERS that the request has.
    """

    path: str
    fields: Mapping[str, str]
    host: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, target: str, host: str, headers: Mapping[str, str]) -> Asked:
        """Parse the target of a request.

        Raises:
            Unanswerable: it has too many fields.
        """
        try:
            parts = urlsplit(target)
            pairs = parse_qsl(
                parts.query, max_num_fields=_MOST_FIELDS, errors="replace", keep_blank_values=False
            )
        except ValueError:
            raise Unanswerable(HTTPStatus.BAD_REQUEST, "The address is not a valid one.") from None
        return cls(parts.path, dict(reversed(pairs)), host, headers)

    def text(self, name: str) -> str:
        """Return a field without spaces around it; empty if it is not given."""
        return self.fields.get(name, "").strip()

    def number(self, name: str) -> int | None:
        """Return a field that is a number; None if it is not given.

        Raises:
            Unanswerable: it is not a number.
        """
        given = self.text(name)
        if not given:
            return None
        if not _NUMBER.fullmatch(given):
            raise Unanswerable(HTTPStatus.BAD_REQUEST, f"{name} is not a number: {given[:64]}")
        return int(given)

    def needed(self, name: str) -> str:
        """Return a field that must be given.

        Raises:
            Unanswerable: it is not.
        """
        given = self.text(name)
        if not given:
            raise Unanswerable(HTTPStatus.BAD_REQUEST, f"The address lacks {name}.")
        return given


def address(path: str, /, **fields: str | int | None) -> str:
    """Return the address of a page.

    Args:
        path: its path.
        fields: of its query; None and empty ones are left out.
    """
    query = urlencode({name: at for name, at in fields.items() if at is not None and at != ""})
    return f"{path}?{query}" if query else path
