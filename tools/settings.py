"""Write settings as a table of Markdown, for the references of options and configuration."""

from __future__ import annotations

from collections.abc import Iterable

from rmqstore_spark.base.settings import Declaration

__all__ = ["cell", "row", "table"]


def table(title: str, settings: Iterable[Declaration]) -> list[str]:
    """Return the lines of a table.

    Args:
        title: of the first column.
    """
    head = f"| {title} | value | default | meaning |\n|---|---|---|---|"
    return [head, *map(row, settings), ""]


def row(setting: Declaration) -> str:
    """Return the row of a setting."""
    names = " or ".join(f"`{name}`" for name in (setting.name, *setting.aliases))
    default = setting.default_doc or (f"`{setting.default}`" if setting.default else "")
    cells = (names + "\\*" * setting.own, setting.values, default, setting.doc)
    return "| " + " | ".join(map(cell, cells)) + " |"


def cell(text: str) -> str:
    """Return a text as a table needs it."""
    return text.replace("|", "\\|")
