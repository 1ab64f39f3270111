"""Parses the filters on tags and keys that the source's options and the command take.

RocketMQ's tag expression (FilterAPI.buildSubscriptionData) is `*`, or tags with `||` between them.
It has no other operator. RocketMQ takes anything else as part of a tag: `TagA && TagB` is a single
tag, which no message has. These functions refuse whatever looks like another operator. A JSON list
names tags and keys literally.
"""

from __future__ import annotations

import json
import re
from typing import Final

_NO_TAG: Final = re.compile(r"""[\s,;&|!<>=()*'"]""")
_NO_KEY: Final = re.compile(r"[,;]|^(\|\||&&|AND|OR|and|or|\*)$")


def parse_tags(text: str) -> frozenset[str] | None:
    """Parse a tag expression, or a JSON list of tags.

    Returns:
        The tags; None for all.

    Raises:
        ValueError: the text is neither. The text of the error continues a sentence that begins with
            the name of the option.
    """
    if text.lstrip().startswith("["):
        return frozenset(parse_names(text))
    tags = [tag.strip() for tag in text.split("||")]
    if tags in ([""], ["*"]):
        return None
    if not all(tags) or any(map(_NO_TAG.search, tags)):
        raise ValueError(
            'must be "*", or tags separated by ||, the only operator that RocketMQ has for tags; '
            'put a tag with other special characters in a JSON list, such as ["a&&b"]'
        )
    return frozenset(tags)


def parse_keys(text: str) -> frozenset[str]:
    """Parse keys that are separated by spaces, or a JSON list of keys.

    Raises:
        ValueError: the text is neither. The text of the error continues a sentence that begins with
            the name of the option.
    """
    if text.lstrip().startswith("["):
        return frozenset(parse_names(text))
    keys = frozenset(text.split())
    if not keys:
        raise ValueError("contains no key")
    if any(map(_NO_KEY.search, keys)):
        raise ValueError(
            "must be keys separated by spaces, without operators; put a key with special "
            'characters in a JSON list, such as ["a,b"]'
        )
    return keys


def parse_names(text: str) -> tuple[str, ...]:
    """Parse a list of names: comma-separated, or a JSON list of strings.

    Raises:
        ValueError: the text is neither. The text of the error continues a sentence that begins with
            the name of the option.
    """
    if text.lstrip().startswith("["):
        try:
            value = json.loads(text)
        except (json.JSONDecodeError, RecursionError):
            value = None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ValueError("must be a JSON list of strings")
        names = value
    else:
        names = [item.strip() for item in text.split(",")]
    if not names or not all(names):
        raise ValueError("must not be empty or contain empty names")
    return tuple(names)
