"""HTML that cannot hold what it should not: every text is escaped where an element is made.

Topics, keys, properties, bodies and log lines come from others. Only `element` makes `Markup`, and
whatever is not `Markup` becomes text in it. What is not printable, direction marks included, is
shown escaped, as the command does.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Final, TypeAlias, Union

from rmqstore_spark.base.printable import escaped, is_printable

Content: TypeAlias = Union[str, int, "Markup", Iterable["Content"], None]
"""What an element can hold: text, markup, several of them; None is nothing."""

_VOID: Final = frozenset({"br", "col", "hr", "input", "link", "meta"})
_LINES: Final = frozenset("\n\t")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(name: str, /, *content: Content, **attributes: str | int | bool | None) -> Markup:
    """Return an element.

    Args:
        name: its name.
        content: what it holds.
        attributes: by name: a trailing `_` is dropped, another one is a hyphen. None and False
            leave an attribute out, True gives it no value.
    """
    given = "".join(
        f" {_name(key)}" if value is True else f' {_name(key)}="{_text(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{joined(content)}</{name}>")


def joined(content: Content) -> Markup:
    """Return content as markup; its texts are escaped."""
    if isinstance(content, Markup):
        return content
    if content is None:
        return Markup("")
    if isinstance(content, (str, int)):
        return Markup(_text(str(content)))
    return Markup("".join(map(joined, content)))


def lines(text: str) -> Markup:
    """Return a text in which line ends and tabs stay as they are; for `pre`."""
    if not text.isprintable():
        text = "".join(c if c in _LINES or is_printable(c) else escaped(c) for c in text)
    return Markup(html.escape(text))


def _text(text: str) -> str:
    return html.escape(escaped(text))


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")
