"""Finds phrases that this project does not use: `python -m tools.words`, part of `make lint`.

They are hard to read, above all for people whose first language is not English. Each has a plain
way to say the same. The check looks at code, comments and documentation alike.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
SUFFIXES: Final = {".c", ".conf", ".h", ".ipynb", ".md", ".py", ".sh", ".svg", ".toml", ""}
PHRASES: Final = {
    r"anew": "again",
    r"for good": "permanently; finally",
    r"(?:is|are) to be (?:told|said|had)": "say who does what: tell it, set it, install it",
    r"goes by": "uses, follows",
    r"(?:is|are) none (?:that|of)": "no ... does",
    r"where there (?:is|are) none": "without one",
    r"whoever": "a client that; anyone who",
    r"in one go": "at once",
    r"be it": "whether",
    r"what is there": "the existing ...",
    r"makes of": "derives from",
    r"is no number of": "is not a valid number of",
    r"up to where": "the offset up to which",
}
"""Regular expressions of whole words, and what to write instead."""

_PATTERN: Final = re.compile(
    r"\b(?:" + "|".join(f"({phrase})" for phrase in PHRASES) + r")\b", re.IGNORECASE
)


def findings(root: Path = ROOT) -> Iterator[str]:
    """Give a line for each phrase in a file that git knows."""
    names = subprocess.run(
        ["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in names:
        path = root / name
        if path.suffix not in SUFFIXES or name == "tools/words.py" or "golden" in name:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for found in _PATTERN.finditer(line):
                instead = list(PHRASES.values())[(found.lastindex or 1) - 1]
                yield f"{name}:{number}: {found[0]!r}: rather {instead}"


def main() -> int:
    """Print what was found; exit code 1 if anything was."""
    found = list(findings())
    for line in found:
        print(line)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
