"""Finds phrases that this project does not use: `python -m tools.words`, part of `make lint`.

They are hard to read, above all for people whose first language is not English. The check covers
code, comments and documentation. A phrase is on the list only if it is never right here.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
EXCEPT: Final = {"LICENSE", "tools/words.py", "tests/tools/test_words.py"}
SUFFIXES: Final = {".c", ".conf", ".h", ".ipynb", ".md", ".py", ".sh", ".svg", ".toml", ""}
PHRASES: Final = {
    r"(?<!there )(?:is|are) no (?!(?:better|faster|longer|more|slower|worse)\b)": "is not a",
    r"(?:is|are) none (?:that|of)": "no ... does",
    r"(?:is|are) to be (?:told|said|had|found|there)": "say who does what",
    r"and (?:is|are) none": "but is not one",
    r"anew": "again",
    r"as it stands": "as written; unchanged",
    r"asks? nobody": "requires no",
    r"as many as (?:it )?may (?:be|have)": "the maximum",
    r"be it": "whether",
    r"comes? along": "is included",
    r"does without": "disables it",
    r"for good": "permanently; finally",
    r"(?<=;) (?:gives|tells)": "returns",
    r"goes by": "uses, follows",
    r"go(?:es)? on|go(?:es)?_on": "continues",
    r"herein|hereby|hitherto|hereof": "here; so far",
    r"(?:is|are|was) had": "say who has it",
    r"(?:any|no)body's": "of no one; drop it",
    r"in earnest": "actually",
    r"in one go": "at once",
    r"in vain": "failed; without effect",
    r"is no more": "has ended",
    r"is no number of": "is not a valid number of",
    r"it is told": "it receives; the test sets it",
    r"lets? in": "accepts",
    r"lest": "so that ... not",
    r"lie(?:s)? (?:there|beside|behind)": "is there; is next to",
    r"likewise": "as above; in the same way",
    r"makes of": "derives from",
    r"of its own accord": "by itself",
    r"so much (?:left|looks)": "too much; enough",
    r"spoke of|speaks of": "names; mentions",
    r"such as ha(?:s|ve)": "those that have",
    r"thereof|therein|thereto|thereby|wherein|whereof|wherefore": "of it, in it, by that",
    r"(?:is|are) said": "the error says, the log reports",
    r"taken another way": "diverged",
    r"thus far": "so far",
    r"comes? about": "to happen; is committed",
    r"up to where": "the offset up to which",
    r"what (?:is|was) there": "the existing ...",
    r"where (?:it|they|each) lies?": "its position",
    r"where there (?:is|are) none": "without one",
    r"all the while": "meanwhile",
    r"was to come": "was expected",
    r"whoever": "a client that; anyone who",
}
"""Regular expressions of whole words, and what to write instead."""

# An alternative that begins with a letter is skipped at once where that letter is not: so the group
# that tells which one was found is empty and ends it, and the text is in lower case.
_PATTERN: Final = re.compile(r"(?<!\w)(?:" + "|".join(f"{phrase}()" for phrase in PHRASES) + r")\b")


def findings(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line number of each phrase in a text, the phrase, and what to write instead."""
    for number, line in enumerate(text.splitlines(), 1):
        for found in _PATTERN.finditer(line.lower()):
            instead = list(PHRASES.values())[(found.lastindex or 1) - 1]
            yield number, line[slice(*found.span())], instead


def findings_of(root: Path = ROOT) -> Iterator[str]:
    """Yield a line for each phrase in a file that git tracks."""
    names = subprocess.run(
        ["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in names:
        path = root / name
        if path.suffix not in SUFFIXES or name in EXCEPT or "golden" in name or not path.is_file():
            continue
        for number, phrase, instead in findings(path.read_text(encoding="utf-8")):
            yield f"{name}:{number}: {phrase!r}: write: {instead}"


def main() -> int:
    """Print the findings; the exit code is 1 if there are any."""
    found = list(findings_of())
    for line in found:
        print(line)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
