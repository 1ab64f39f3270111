"""Declare the keys of a configuration, and read and write their values.

A key is a field of the class of its configuration. Its name is the field's in camel case, unless it
has another one in RocketMQ.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from rmqstore_spark.base.settings import (
    Declaration,
    as_text,
    declare,
    nearest,
    parse_boolean,
    parse_choice,
    settings_of,
)
from rmqstore_spark.engine.config.properties_file import format_properties
from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout.record.delayed import delays

PAGE: Final = "docs/configuration.md"

_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_SHARE: Final = re.compile(r"[01]?\.?[0-9]{0,9}")
_MAX_OFFSET: Final = 2**63 - 1
_MOST_LEVELS: Final = 256
_LONGEST_DELAY_MS: Final = 3650 * 86_400_000
_MOST_ADDRESSES: Final = 16
_CLUSTER: Final = re.compile(r"[%|a-zA-Z0-9_.-]{1,127}")


def number(
    default: int, least: int, most: int, doc: str, *, group: str, unit: str = "", own: bool = False
) -> Any:
    """Declare a key with a whole number between two bounds, both included."""

    def parse(given: str) -> int:
        word = given.strip()
        if not _INTEGER.fullmatch(word) or not least <= int(word) <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return int(word)

    kind = unit or "number"
    return declare(
        Declaration(kind, parse, str(default), doc, group, least=least, most=most, own=own)
    )


def share(default: float, doc: str, *, group: str, own: bool = False) -> Any:
    """Declare a key with a part of a whole, above 0 and at most 1."""

    def parse(given: str) -> float:
        word = given.strip()
        if not _SHARE.fullmatch(word) or not 0 < float(word) <= 1:
            raise ValueError("must be a number above 0 and at most 1, such as 0.85")
        return float(word)

    return declare(Declaration("part, above 0 to 1", parse, str(default), doc, group, own=own))


def flag(default: bool, doc: str, *, group: str, own: bool = False) -> Any:
    """Declare a key that is `true` or `false`."""
    return declare(
        Declaration("true or false", parse_boolean, as_text(default), doc, group, own=own)
    )


def choice(default: str, words: tuple[str, ...], doc: str, *, group: str, own: bool = False) -> Any:
    """Declare a key that takes one of some words, in any case."""
    kind = " or ".join(f"`{word}`" for word in words)
    return declare(Declaration(kind, parse_choice(*words), default, doc, group, own=own))


def text(
    default: str,
    doc: str,
    *,
    group: str,
    kind: str = "text",
    own: bool = False,
    check: Callable[[str], str] = str,
    name: str = "",
) -> Any:
    """Declare a key with a text without control characters.

    Args:
        check: normalizes a value; raises ValueError with a phrase.
        name: if it is not the field's.
    """

    def parse(given: str) -> str:
        word = given.strip()
        if not word.isprintable():
            raise ValueError("must not hold control characters")
        return check(word)

    return declare(Declaration(kind, parse, default, doc, group, own=own, name=name))


def as_properties(configuration: object) -> str:
    """Format a configuration as a properties file."""
    keys = settings_of(type(configuration))
    return format_properties({k.name: as_text(getattr(configuration, k.attribute)) for k in keys})


def read_value(key: Declaration, name: str, given: str, source: str) -> Any:
    """Return the value of a text.

    Args:
        key: the key.
        name: its name where the text stands.
        given: the text.
        source: origin of the text, for messages.

    Raises:
        OptionError: the text is wrong for this key.
    """
    try:
        return key.parse(given)
    except ValueError as error:
        raise OptionError(f"{source}{name} {error}, not {shown(given)}.") from None


def read_values(
    values: Mapping[str, str],
    keys: Mapping[str, Declaration],
    others: Collection[str],
    source: str,
    page: str = PAGE,
    *,
    strays: Collection[str] = (),
) -> tuple[dict[str, Any], list[str]]:
    """Return the values of texts, and which keys have no meaning here.

    Args:
        values: texts by key.
        keys: the keys that exist, by name.
        others: keys that may stand there too.
        source: origin of the texts, for messages.
        page: see `unknown_key`.
        strays: the same as `others`, but nobody means one of these.

    Returns:
        The values by attribute, and those of `others` and `strays` that are there.

    Raises:
        OptionError: a key is unknown, or a text is wrong.
    """
    found, without = {}, []
    for name, given in values.items():
        key = keys.get(name)
        if key is not None:
            found[key.attribute] = read_value(key, name, given, source)
        elif name in others or name in strays:
            without.append(name)
        else:
            raise OptionError(f"{source}{unknown_key(name, [*keys, *others], page)}")
    return found, without


def unknown_key(name: str, known: Iterable[str], page: str = PAGE) -> str:
    """Return what to say about a key that does not exist.

    Args:
        name: the key.
        known: the keys that exist.
        page: the page of the documentation that lists them.
    """
    near = nearest(name, known)
    hint = f"{page} lists all keys." if near is None else f"Did you mean {near}?"
    return f"unknown key {shown(name)}. {hint}"


def shown(given: str) -> str:
    """Return a text in quotes, cut if it is long."""
    return repr(given if len(given) <= 80 else given[:80] + "...")


def address(word: str) -> str:
    """Normalize an IP address, or localhost."""
    if word.lower() == "localhost":
        return "127.0.0.1"
    try:
        return str(ipaddress.ip_address(word.removeprefix("[").removesuffix("]")))
    except ValueError:
        raise ValueError("must be an IPv4 or IPv6 address, or localhost") from None


def host_and_port(word: str) -> str:
    """Check `host:port`; "" is allowed."""
    host, separator, port = word.rpartition(":")
    if word and not (host and separator and port.isdecimal() and 0 < int(port) < 65_536):
        raise ValueError("must be host:port")
    return word


def addresses(word: str) -> str:
    """Normalize some `host:port` with `;` between; "" is allowed."""
    parts = [part.strip() for part in word.split(";") if part.strip()]
    if len(parts) > _MOST_ADDRESSES:
        raise ValueError(f"must be at most {_MOST_ADDRESSES} addresses")
    try:
        return ";".join(map(host_and_port, parts))
    except ValueError:
        raise ValueError("must be host:port, or several with ; between them") from None


def cluster(word: str) -> str:
    """Check the name of a cluster."""
    if not _CLUSTER.fullmatch(word):
        raise ValueError("must be 1 to 127 letters, digits and characters of %|_.-")
    return word


def beginning(word: str) -> str:
    """Check where an empty slave begins: earliest, latest or a physical offset."""
    if word.lower() in ("earliest", "latest"):
        return word.lower()
    if not (word.isascii() and word.isdecimal() and int(word) <= _MAX_OFFSET):
        raise ValueError("must be earliest, latest or a physical offset")
    return word


def delay_levels(word: str) -> str:
    """Check a broker's `messageDelayLevel`."""
    try:
        times = delays(word)
    except ValueError as error:
        raise ValueError(f"must be delays such as 1s 5m 2h 1d: {error}") from None
    if not 1 <= len(times) <= _MOST_LEVELS or max(times) > _LONGEST_DELAY_MS:
        raise ValueError(f"must be 1 to {_MOST_LEVELS} delays of at most 3650d")
    return " ".join(word.split())


def hours(word: str) -> str:
    """Check hours of the day with `;` between."""
    for hour in word.split(";"):
        if not hour.strip().isdecimal() or len(hour.strip()) > 2 or int(hour) > 23:
            raise ValueError("must be hours from 0 to 23, with ; between them")
    return word


def networks(word: str) -> str:
    """Normalize IP addresses and networks with commas between."""
    try:
        parts = [ipaddress.ip_network(part.strip(), strict=False) for part in word.split(",")]
    except ValueError:
        raise ValueError(
            "must be IP addresses or networks such as 10.1.2.0/24, with commas between"
        ) from None
    return ",".join(str(part) for part in parts)
