"""Reads the file with the access key of this side, in the form of RocketMQ's `tools.yml`."""

from __future__ import annotations

import os
from typing import Final

from rmqstore_spark.base.secretfiles import read_file
from rmqstore_spark.remoting.access.signing import SessionCredentials
from rmqstore_spark.remoting.access.yaml_values import YamlValue, parse_yaml

_ACCESS_KEY: Final = "accessKey"
_SECRET_KEY: Final = "secretKey"  # noqa: S105 - the name of the field
_LEAST: Final = 1
"""Characters of a key of this side: RocketMQ 5 has users with names and passwords of any length."""
_MOST: Final = 255


def read_credentials(path: str | os.PathLike[str]) -> SessionCredentials:
    """Read `accessKey` and `secretKey` from a file that others may not read.

    Raises:
        OptionError: the file is missing, accessible to others, or holds anything else.
    """
    name = os.fspath(path)
    given = parse_yaml(name, read_file(path, "access key", secret=True))
    return SessionCredentials(*read_keys(given, given.fields((_ACCESS_KEY, _SECRET_KEY)), _LEAST))


def read_keys(of: YamlValue, fields: dict[str, YamlValue], least: int) -> tuple[str, str]:
    """Return the access key and the secret of an account.

    Args:
        of: the account.
        fields: its fields.
        least: how many characters each must have.

    Raises:
        OptionError: one is missing or too short. The error does not show the secret.
    """
    found = []
    for name in (_ACCESS_KEY, _SECRET_KEY):
        value = fields.get(name)
        if value is None:
            raise of.error(f"has no {name}")
        text = value.text()
        if not least <= len(text) <= _MOST or not text.isprintable():
            raise value.error(f"must be {least} to {_MOST} printable characters")
        found.append(text)
    access_key, secret = found
    return access_key, secret
