"""Declare an option of `format("rmqstore")`, and read the options that a user sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from rmqstore_spark.base.settings import Declaration, declare, nearest, settings_of
from rmqstore_spark.errors import OptionError

__all__ = ["BATCH", "BOTH", "STREAM", "Given", "OptionTable", "option"]

BOTH: Final = "batch and stream"
BATCH: Final = "batch only"
STREAM: Final = "stream only"

T = TypeVar("T")


def option(
    name: str,
    kind: str,
    parse: Callable[[str], Any],
    doc: str,
    *,
    default: str | None = None,
    scope: str = BOTH,
    default_doc: str = "",
    minimum: int | None = None,
    aliases: tuple[str, ...] = (),
    unset: Any = None,
) -> Any:
    """Declare an option, as the default of the field that holds its value.

    Args:
        name: the name that users write; Spark's options are not case-sensitive.
        kind: the kind of its value, in a word or two.
        parse: text -> value; raises ValueError with a phrase that follows the name.
        doc: what it does, in Markdown.
        default: the text that users would write, None without a default.
        scope: the kind of query that it applies to.
        default_doc: describes the default if `default` alone does not.
        minimum: the least valid number.
        aliases: other names of the option.
        unset: the field's value without a default.
    """
    checked = parse if minimum is None else _at_least(minimum, parse)
    return declare(
        Declaration(
            kind, checked, default, doc, scope,
            least=minimum, default_doc=default_doc, aliases=aliases, name=name,
        ),
        unset=unset,
    )  # fmt: skip


def _at_least(minimum: int, parse: Callable[[str], int]) -> Callable[[str], int]:
    def checked(text: str) -> int:
        value = parse(text)
        if value < minimum:
            raise ValueError(f"must be at least {minimum}")
        return value

    return checked


class Given(dict[str, Any]):
    """The options that a user has set, parsed, by their own names."""

    def make(self, part: type[T], **others: Any) -> T:
        """Create a part of the options. What the user has not set has its default.

        Args:
            part: the dataclass whose fields are options.
            others: the values of its other fields.
        """
        for each in settings_of(part):
            if each.name in self:
                others[each.attribute] = self[each.name]
        return part(**others)


class OptionTable:
    """The options of one direction, reading or writing.

    Attributes:
        options: all of them.
        by_name: the option of each name and alias, in lower case: names are not case-sensitive.
    """

    def __init__(self, options: Iterable[Declaration]) -> None:
        self.options: Final = tuple(options)
        self.by_name: Final[Mapping[str, Declaration]] = {
            name.lower(): each for each in self.options for name in (each.name, *each.aliases)
        }

    @classmethod
    def of(cls, *parts: type) -> OptionTable:
        """List the options that are fields of some dataclasses."""
        return cls(each for part in parts for each in settings_of(part))

    def read(self, texts: Mapping[str, str]) -> Given:
        """Parse the options that the user set.

        Args:
            texts: by name, not case-sensitive.

        Raises:
            OptionError: an option is unknown, given twice under two names, or has a wrong value.
        """
        given = Given()
        names: dict[str, str] = {}
        for name, text in texts.items():
            found = self.by_name.get(name.lower())
            if found is None:
                raise self.unknown(name)
            if found.name in given:
                raise OptionError(
                    f"Options {names[found.name]} and {name} are the same option: set only one."
                )
            try:
                given[found.name] = found.parse(text)
            except OptionError as error:
                raise OptionError(f"Option {found.name}: {error}") from None
            except ValueError as error:
                raise OptionError(f"Option {found.name} {error}, not {text!r}.") from None
            names[found.name] = name
        return given

    def unknown(self, name: str) -> OptionError:
        """Create the error for an unknown name; it suggests a similar one."""
        close = nearest(name, (n for each in self.options for n in (each.name, *each.aliases)))
        if close is not None:
            return OptionError(f"Unknown option {name!r}. Did you mean {close}?")
        names = dict.fromkeys(each.name for each in self.options)
        return OptionError(f"Unknown option {name!r}. The options are: {', '.join(names)}.")
