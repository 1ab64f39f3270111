"""Define an option of `format("rmqstore")`, and read options by a table of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from rmqstore_spark.errors import OptionError

__all__ = ["BATCH", "BOTH", "STREAM", "Option", "OptionTable"]

BOTH: Final = "batch and stream"
BATCH: Final = "batch only"
STREAM: Final = "stream only"


@dataclass(frozen=True)
class Option:
    """One option.

    Args:
        name: the name that users write; Spark's options are not case-sensitive.
        kind: the kind of its value, in a word or two.
        parse: text -> value; raises ValueError with a phrase that follows the name.
        default: the text that users would write, None without a default.
        scope: the kind of query that it applies to.
        doc: what it does, in Markdown.
        default_doc: describes the default if `default` alone does not.
        minimum: the least valid number.
        aliases: other names of the option.
    """

    name: str
    kind: str
    parse: Callable[[str], Any]
    default: str | None
    scope: str
    doc: str
    default_doc: str = ""
    minimum: int | None = None
    aliases: tuple[str, ...] = ()

    def read(self, text: str) -> Any:
        """Parse a value and check its range."""
        value = self.parse(text)
        if self.minimum is not None and value < self.minimum:
            raise ValueError(f"must be at least {self.minimum}")
        return value


@dataclass(frozen=True)
class OptionTable:
    """The options of one direction, reading or writing."""

    options: tuple[Option, ...]

    @cached_property
    def _by_name(self) -> dict[str, Option]:
        return {
            name.lower(): option
            for option in self.options
            for name in (option.name, *option.aliases)
        }

    def named(self, name: str) -> Option | None:
        """Find an option by any of its names, not case-sensitive."""
        return self._by_name.get(name.lower())

    def read(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Parse the options that the user set: values by the options' own names.

        Args:
            given: texts by name, not case-sensitive.

        Raises:
            OptionError: an option is unknown, given twice under two names, or has a wrong value.
        """
        values: dict[str, Any] = {}
        names: dict[str, str] = {}
        for name, text in given.items():
            option = self.named(name)
            if option is None:
                raise self.unknown(name)
            if option.name in values:
                raise OptionError(
                    f"Options {names[option.name]} and {name} are the same option: set only one."
                )
            try:
                values[option.name] = option.read(text)
            except OptionError as error:
                raise OptionError(f"Option {option.name}: {error}") from None
            except ValueError as error:
                raise OptionError(f"Option {option.name} {error}, not {text!r}.") from None
            names[option.name] = name
        return values

    def with_defaults(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Add the defaults of options that were not set."""
        defaults = {
            option.name: option.read(option.default)
            for option in self.options
            if option.default is not None and option.name not in values
        }
        return {**defaults, **values}

    def unknown(self, name: str) -> OptionError:
        """Create the error for an unknown name; it suggests a similar one."""
        spelled = {
            known.lower(): known
            for option in self.options
            for known in (option.name, *option.aliases)
        }
        import difflib  # only needed on errors: Spark loads this module for each step of a query

        close = difflib.get_close_matches(name.lower(), spelled, n=1, cutoff=0.6)
        if close:
            return OptionError(f"Unknown option {name!r}. Did you mean {spelled[close[0]]}?")
        names = dict.fromkeys(option.name for option in self.options)
        return OptionError(f"Unknown option {name!r}. The options are: {', '.join(names)}.")
