"""Reads small YAML files strictly: what is not expected is an error that names its line.

Values stay texts as they are written, because RocketMQ's files have secrets such as `12345678`
without quotes. What YAML would change on the way (`0123`, `1_000`, `on`) must be quoted.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator
from typing import Any, Final

import yaml

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.base.secretfiles import MAX_BYTES
from rmqstore_spark.errors import OptionError

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DEEPEST: Final = 8
_SHOWN: Final = 80
_TAG: Final = "tag:yaml.org,2002:"
_PLAIN_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,254}")


class YamlValue:
    """A value of a file.

    Args:
        path: of the file, for errors.
        node: of the parser.
        name: what it is called, for errors.
    """

    def __init__(self, path: str, node: Any, name: str) -> None:
        self._path = path
        self._node = node
        self._name = name

    @property
    def is_empty(self) -> bool:
        """Whether nothing is written there."""
        return self._kind == "null"

    def fields(self, known: Collection[str]) -> dict[str, YamlValue]:
        """Return the values of a mapping by name; those that are empty are left out.

        Args:
            known: the names that it may have.

        Raises:
            OptionError: it is not a mapping, or has another name, or one twice.
        """
        if not isinstance(self._node, yaml.MappingNode):
            raise self.error("must be a mapping, with lines such as `name: value`")
        found: dict[str, YamlValue] = {}
        for key, node in self._node.value:
            name = YamlValue(self._path, key, "a name").text()
            value = YamlValue(self._path, node, name)
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(known)}."
                raise value.error(f"is not a name that {self._name} can have. {hint}", key)
            if name in found:
                raise value.error("stands there twice", key)
            found[name] = value
        return {name: value for name, value in found.items() if not value.is_empty}

    def items(self) -> list[YamlValue]:
        """Return the values of a list.

        Raises:
            OptionError: it is not a list.
        """
        if not isinstance(self._node, yaml.SequenceNode):
            raise self.error("must be a list, with lines such as `- value`")
        return [YamlValue(self._path, node, self._name) for node in self._node.value]

    def text(self) -> str:
        """Return a text, or the digits of a number.

        Raises:
            OptionError: it is something else, or YAML would read other digits.
        """
        if not isinstance(self._node, yaml.ScalarNode):
            raise self.error("must be a text")
        found = str(self._node.value)
        if self._kind != "str" and not (self._kind == "int" and _PLAIN_NUMBER.fullmatch(found)):
            raise self.error("is not a text for YAML: put it in quotes")
        return found

    def flag(self) -> bool:
        """Return whether it is true.

        Raises:
            OptionError: it is neither true nor false.
        """
        word = str(self._node.value).lower() if isinstance(self._node, yaml.ScalarNode) else ""
        if word not in ("true", "false"):
            raise self.error("must be true or false")
        return word == "true"

    def error(self, what: str, node: Any = None) -> OptionError:
        """Return the error for a value that is wrong.

        Args:
            what: is wrong with it, as the end of a sentence that begins with its name.
            node: where, if not at the value itself.
        """
        line = (node or self._node).start_mark.line + 1
        name = escaped(self._name[:_SHOWN])
        return OptionError(f"{self._path}, line {line}: {name} {what.rstrip('.')}.")

    @property
    def _kind(self) -> str:
        return str(self._node.tag).removeprefix(_TAG)


def parse_yaml(path: str, data: bytes) -> YamlValue:
    """Parse a file's content: one document without anchors and aliases.

    Args:
        path: of the file, for errors.
        data: its content.

    Raises:
        OptionError: it is not that, too large, or nested too deep. The error does not show the
            content.
    """
    if len(data) >= MAX_BYTES:
        raise OptionError(f"{path} is too large: it must have less than {MAX_BYTES} bytes.")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise OptionError(f"{path} is not UTF-8: see byte {error.start}.") from None
    try:
        _check(path, text)
        node = yaml.compose(text, _LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        what = getattr(error, "problem", None) or "it cannot be parsed"
        raise OptionError(f"{path}{where}: this is not YAML: {escaped(what)}.") from None
    if node is None:
        raise OptionError(f"{path} is empty.")
    return YamlValue(path, node, "the file")


def _check(path: str, text: str) -> None:
    """Refuse what would make a small file large or deep."""
    depth = 0
    events: Iterator[Any] = yaml.parse(text, _LOADER)
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        is_alias = isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None
        if is_alias or depth > _DEEPEST:
            what = "anchors and aliases are not accepted" if is_alias else "this is nested too deep"
            raise OptionError(f"{path}, line {event.start_mark.line + 1}: {what}.")
