"""A page that does not do what it says is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tutorials.following import follow

START = "mkdir -p /tmp/shown && cd /tmp/shown\n\n"


def page(folder: Path, *blocks: str) -> Path:
    path = folder / "page.md"
    path.write_text(START + "\n\n".join(blocks) + "\n")
    return path


def fenced(language: str, text: str, mark: str = "") -> str:
    return (f"<!-- {mark} -->\n" if mark else "") + f"```{language}\n{text}\n```"


def test_what_a_page_shows_is_compared(tmp_path: Path) -> None:
    path = page(
        tmp_path,
        fenced("bash", "exit 1", "not run"),
        "Save `greet.sh`:",
        fenced('bash title="greet.sh"', 'echo "hello,  $1 from port 30921 and 30922 at $PWD"'),
        fenced("bash", "YOU=reader\nbash greet.sh $YOU > greeting.txt"),
        "The variable stays:",
        fenced("bash", "cat greeting.txt; echo $YOU >&2; date --iso-8601=s | tr + Z; echo a1; ls"),
        fenced(
            "text",
            "hello, reader from port 30921 and 30922 at /tmp/shown\nreader\n"
            "2026-01-01T00:00:00Z00:00\na2\n...",
            r"varies: a\d|Z00:00",
        ),
        fenced("bash", "(sleep 0.3; echo later) & false", "exit: 1"),
        fenced("text", "later"),
    )
    work = follow(path, tmp_path)
    said = (work / "greeting.txt").read_text()
    assert "30921" not in said  # it ran with ports of its own
    assert str(work) in said


@pytest.mark.parametrize(
    ("blocks", "why"),
    [
        ([fenced("bash", "echo one; echo two"), fenced("text", "one")], "echo one"),
        ([fenced("bash", "echo one"), fenced("text", "one\ntwo")], "and not"),
        ([fenced("bash", "echo unsaid")], "unsaid"),
        ([fenced("bash", "echo 3 s"), fenced("text", "4 s", r"varies: \d ms")], "3 s"),
        ([fenced("bash", "false")], "ended with 1"),
        ([fenced("bash", "sleep 60 &")], "in time"),
    ],
)
def test_what_is_otherwise_fails(
    blocks: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.tutorials.terminal._AFTERWARDS", 0.2)
    with pytest.raises(AssertionError, match=why):
        follow(page(tmp_path, *blocks), tmp_path)


@pytest.mark.parametrize(
    ("blocks", "why"),
    [
        ([fenced("python", "print(1)")], "what is this block for"),
        ([fenced("text", "printed by nothing")], "what is this block for"),
        ([fenced('python title="a.py"', "print(1)")], "does not say to save a.py"),
        ([fenced("bash", "true", "exits: 1")], "what is this block for"),
    ],
)
def test_a_block_that_no_reader_would_understand(
    blocks: list[str], why: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=why):
        follow(page(tmp_path, *blocks), tmp_path)
