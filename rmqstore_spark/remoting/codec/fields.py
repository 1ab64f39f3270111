"""Reads the fields of a request's header. What is missing or wrong is named in the answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.errors import RemotingError
from rmqstore_spark.remoting.codec.codes import ResponseCode

MAX_INT: Final = (1 << 31) - 1
MAX_LONG: Final = (1 << 63) - 1

MAX_NAME: Final = 255
"""Most characters of the name of a topic, group, broker or cluster, and of an address."""

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_SHOWN: Final = 80


class Number(NamedTuple):
    """A field that holds a number.

    Attributes:
        name: of the field.
        least, most: the bounds of the number.
        default: for a field that is missing; None: it must be there.
    """

    name: str
    least: int
    most: int
    default: int | None = None


class Fields:
    """The fields of a header.

    Args:
        given: `Command.ext`.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def name(self, field: str) -> str:
        """Return the name or address that a field must hold.

        Raises:
            RemotingError: it is missing, empty, too long, or holds control characters.
        """
        found = self.text(field)
        if not found or len(found) > MAX_NAME or not found.isprintable():
            raise _refused(f"the field {field} must be 1 to {MAX_NAME} printable characters", found)
        return found

    def text(self, field: str) -> str:
        """Return the text that a field must hold.

        Raises:
            RemotingError: it is missing.
        """
        found = self._given.get(field)
        if found is None:
            raise _refused(f"the request has no field {field}")
        return found

    def long(self, field: str, least: int, most: int, default: int | None = None) -> int:
        """Return the number of a field; see `Number`.

        Raises:
            RemotingError: it is missing, not a number, or out of bounds.
        """
        return self.longs((Number(field, least, most, default),))[0]

    def longs(self, wanted: Iterable[Number]) -> list[int]:
        """Return the numbers of several fields, in their order.

        Raises:
            RemotingError: one is missing, not a number, or out of bounds.
        """
        numbers = []
        for field, least, most, default in wanted:
            found = self._given.get(field)
            if found is None and default is not None:
                numbers.append(default)
                continue
            if found is None:
                found = self.text(field)  # which tells that it is missing
            number = int(found) if _INTEGER.fullmatch(found) else None
            if number is None or not least <= number <= most:
                raise _refused(f"the field {field} must be a number from {least} to {most}", found)
            numbers.append(number)
        return numbers

    def flag(self, field: str) -> bool:
        """Return whether a field is `true`, in any case. C++'s "1" is not, as for RocketMQ."""
        return self._given.get(field, "").lower() == "true"


def _refused(what: str, found: str | None = None) -> RemotingError:
    if found is not None:
        what += f", not '{escaped(found[:_SHOWN])}'"
    return RemotingError(ResponseCode.SYSTEM_ERROR, what)
