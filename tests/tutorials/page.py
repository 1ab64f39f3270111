"""What a page of docs/tutorials asks its reader to do, and what it shows of that.

A page is read from top to bottom. Its fenced blocks are

    ```python title="count.py"   a file that the reader saves, in any language
    ```bash                      commands that the reader runs, in one terminal
    ```text                      what these commands print; without it, they print nothing

A comment in the line before a block says more, and is not shown to the reader:

    <!-- not run -->             installation, and what a test cannot do
    <!-- exit: 1 -->             the exit code of the last command; 0 without it
    <!-- varies: REGEX -->       what of the output may be different, besides times

In the output, a line `...` stands for any lines. The first `mkdir -p FOLDER && cd FOLDER` of the
page is the folder in which its reader works.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Commands", "Page", "SavedFile", "read_page"]

_BLOCK: Final = re.compile(
    r"(?:^<!-- (?P<mark>.*?) -->\n)?^```(?P<info>[^\n]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_FOLDER: Final = re.compile(r"mkdir -p (\S+) && cd \1$", re.MULTILINE)
_PORT: Final = re.compile(r"\b30[89]\d\d\b")


@dataclass(frozen=True)
class SavedFile:
    """A file that the reader saves."""

    name: str
    text: str


@dataclass
class Commands:
    """Commands that are run together.

    Attributes:
        text: the commands.
        exit_code: that of the last one.
        output: what the page shows of their output.
        varies: patterns of what may be different there.
    """

    text: str
    exit_code: int = 0
    output: str = ""
    varies: tuple[str, ...] = ()


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        folder: where its reader works.
        ports: those that it names, in ascending order.
        steps: what its reader does.
    """

    folder: str
    ports: tuple[int, ...]
    steps: tuple[SavedFile | Commands, ...]


def read_page(path: Path) -> Page:
    """Read a page.

    Raises:
        ValueError: the reader would not know what to do with a block.
    """
    text = path.read_text(encoding="utf-8")
    steps: list[SavedFile | Commands] = []
    ports: set[int] = set()
    for block in _BLOCK.finditer(text):
        if block["mark"] == "not run":
            continue
        ports.update(map(int, _PORT.findall(block["text"])))
        step = _step(block)
        last = steps[-1] if steps else None
        if isinstance(step, SavedFile) and f"`{step.name}`" not in text[: block.start()]:
            raise ValueError(f"{path} does not say to save {step.name}")
        if step is not None:
            steps.append(step)
        elif isinstance(last, Commands) and not last.output and _is_output(block):
            last.output = block["text"]
            last.varies = (block["mark"].removeprefix("varies: "),) if block["mark"] else ()
        else:
            raise ValueError(f"{path}: what is this block for?\n{block[0]}")
    found = _FOLDER.search(text)
    if not found:
        raise ValueError(f"{path} does not say in which folder to work")
    return Page(found[1], tuple(sorted(ports)), tuple(steps))


def _step(block: re.Match[str]) -> SavedFile | Commands | None:
    mark = block["mark"] or ""
    if named := re.fullmatch(r'\w+ title="([\w.-]+)"', block["info"]):
        return SavedFile(named[1], block["text"])
    if block["info"] == "bash" and (code := re.fullmatch(r"(?:exit: (\d+))?", mark)):
        return Commands(block["text"], int(code[1] or 0))
    return None


def _is_output(block: re.Match[str]) -> bool:
    return block["info"] == "text" and re.match("varies: |$", block["mark"] or "") is not None
