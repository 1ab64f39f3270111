"""Reads the configuration of a store from flags, the environment and a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rmqstore_spark.errors import OptionError
from rmqstore_spark.files.open import is_endpoint

if TYPE_CHECKING:
    from rmqstore_spark.engine.config.store_config import StoreConfig

ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Configuration file, such as conf/store.conf.",
        show_default=False,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a configuration key. Repeat it for several.",
        show_default=False,
    ),
]


def require_folder(path: str) -> None:
    """Refuse a URL as the place of a store that is written.

    Raises:
        OptionError: it is one.
    """
    if "://" in path or is_endpoint(path):
        raise OptionError(
            f"{path} is a URL, but a store can only be written in a folder of this machine. Give "
            "the path of a folder."
        )


def read_config(
    file: str | None, settings: Sequence[str] | None, flags: Mapping[str, tuple[str, object]]
) -> StoreConfig:
    """Merge a configuration: flags override the environment, which overrides the file.

    Args:
        file: path of a properties file.
        settings: `--set` values.
        flags: key and value by flag; the value is None if the flag was not given.

    Raises:
        OptionError: a key is unknown, or a value is wrong; the error names its source.
    """
    from rmqstore_spark.engine.config.store_config import StoreConfig

    config = StoreConfig() if file is None else StoreConfig.from_file(file)
    config = config.with_environment()
    config = config.with_overrides(split_settings(settings), source="--set: ")
    for flag, (key, given) in flags.items():
        if given is not None:
            config = config.with_overrides({key: str(given)}, source=f"{flag}: ")
    return config


def split_settings(settings: Sequence[str] | None) -> dict[str, str]:
    """Return the values of `--set` by key.

    Raises:
        OptionError: one is not KEY=VALUE.
    """
    found = {}
    for text in settings or ():
        key, separator, value = text.partition("=")
        if not separator:
            raise OptionError(f"Option --set must be KEY=VALUE, not {text!r}.")
        found[key.strip()] = value
    return found
