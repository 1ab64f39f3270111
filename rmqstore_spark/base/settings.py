"""Settings that users write as text: options of Spark, keys of configuration files.

A setting is declared once, as the field of a dataclass that holds its value. The field's metadata
has a `Declaration`, which says how its text is named, read and described. The references of options
and keys are generated from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Final

_METADATA: Final = "setting"
_NO_LIMIT: Final = 2**63 - 1


@dataclass(frozen=True)
class Declaration:
    """Describes a setting.

    Attributes:
        kind: what its text is, in a word or two.
        parse: text -> value; raises ValueError with a phrase that follows the name.
        default: the text that gives the value of a field that nobody sets; None if none does.
        doc: what it does, in Markdown.
        group: the heading under which it is listed.
        least, most: the range of a number; None if it has none.
        default_doc: describes the default if `default` alone does not.
        aliases: other names of it.
        own: whether RocketMQ has no setting of that name.
        name: the name that users write.
        attribute: the name of the field.
    """

    kind: str
    parse: Callable[[str], Any]
    default: str | None
    doc: str
    group: str
    least: int | None = None
    most: int | None = None
    default_doc: str = ""
    aliases: tuple[str, ...] = ()
    own: bool = False
    name: str = ""
    attribute: str = ""

    @property
    def values(self) -> str:
        """What its text can be: its kind and its range."""
        if self.least is None:
            return self.kind
        is_open = self.most is None or self.most >= _NO_LIMIT
        return f"{self.kind}, {self.least} " + ("or more" if is_open else f"to {self.most}")


def declare(setting: Declaration, *, unset: Any = None) -> Any:
    """Declare a setting, as the default of the field that holds its value.

    Args:
        setting: its name, unless it is given, is that of the field in camel case.
        unset: the value of a setting that nobody sets, if no text gives it.
    """
    value = unset if setting.default is None else setting.parse(setting.default)
    return field(default=value, metadata={_METADATA: setting})


def settings_of(holder: type) -> tuple[Declaration, ...]:
    """Return the settings whose values a dataclass holds, in the order of its fields."""
    return _settings_of(holder)


@cache
def _settings_of(holder: type) -> tuple[Declaration, ...]:
    return tuple(
        replace(setting, name=setting.name or _in_camel_case(item.name), attribute=item.name)
        for item in fields(holder)
        if (setting := item.metadata.get(_METADATA)) is not None
    )


def _in_camel_case(attribute: str) -> str:
    # Spark's planner reads options, which all have names: it need not load `unicodedata`.
    from rmqstore_spark.base.printable import camel_case

    return camel_case(attribute)


def as_text(value: object) -> str:
    """Return the text that gives a value, if it is a text, a number or true or false."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a misspelt one is most like; None if it is like none."""
    import difflib  # only needed on errors: Spark loads this module for each step of a query

    spelled = {word.lower(): word for word in known}
    close = difflib.get_close_matches(name.lower(), spelled, n=1)
    return spelled[close[0]] if close else None


def parse_boolean(text: str) -> bool:
    """Parse `true` or `false`, not case-sensitive."""
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError("must be true or false")
    return word == "true"


def parse_choice(*words: str) -> Callable[[str], str]:
    """Create a parser that accepts one of several words, not case-sensitive."""

    def parse(text: str) -> str:
        for word in words:
            if text.strip().lower() == word.lower():
                return word
        raise ValueError(f"must be {' or '.join(words)}")

    return parse
