"""Command lines of the jobs; the data source's options keep their own names."""

from __future__ import annotations

import argparse
import re

from rmqstore_spark.datasource.options.option import Option
from rmqstore_spark.datasource.options.table import OPTIONS

__all__ = ["add_source_options", "new_parser", "source_options"]

_PREFIX = "source."


def new_parser(name: str, description: str) -> argparse.ArgumentParser:
    """Create a parser for a store, and options by their full names."""
    parser = argparse.ArgumentParser(
        prog=name,
        description=description,
        allow_abbrev=False,
        epilog="docs/jobs.md describes the jobs, docs/options.md the options of the source.",
    )
    parser.add_argument(
        "store",
        metavar="STORE",
        help="store directory or URL, a comma-separated list, a glob, or a JSON list",
    )
    return parser


def add_source_options(parser: argparse.ArgumentParser, *, without: str) -> None:
    """Add the options of the data source, as `--startingOffsets` or `--starting-offsets`.

    Args:
        parser: receives the options.
        without: the scope (of the option table) whose options do not apply.
    """
    group = parser.add_argument_group("options of the source (see docs/options.md)")
    for option in OPTIONS:
        if option.name == "path" or option.scope == without:
            continue
        group.add_argument(
            *_flags(option),
            dest=_PREFIX + option.name,
            metavar=_metavar(option.kind),
        )


def _metavar(kind: str) -> str:
    words = re.findall("`([^`]+)`", kind)
    return "|".join(words) if words else kind.replace(" ", "-").upper()


def _flags(option: Option) -> list[str]:
    flags: list[str] = []
    for name in (option.name, *option.aliases):
        dashed = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()
        flags += [f"--{name}"] if dashed == name else [f"--{name}", f"--{dashed}"]
    return flags


def source_options(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the source's options, its path or endpoint included."""
    given = {
        name.removeprefix(_PREFIX): value
        for name, value in vars(arguments).items()
        if name.startswith(_PREFIX) and value is not None
    }
    return {"endpoint" if _is_endpoint(arguments.store) else "path": arguments.store, **given}


def _is_endpoint(store: str) -> bool:
    return re.match(r"\s*grpc(\+\w+)?://", store) is not None
