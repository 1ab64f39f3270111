"""The check of words finds what it should, and nothing else. The project is looked at by lint."""

from __future__ import annotations

import pytest

from tools.words import findings


@pytest.mark.parametrize(
    "text",
    [
        "The store is opened anew.",
        "'x' is no number of bytes.",
        "It is to be told which Python to use.",
        "What is there is kept.",
        "Run the test; gives its result.",
        "The offsets go on.",
        "The commit does not come about.",
    ],
)
def test_phrases_are_found(text: str) -> None:
    ((line, phrase, instead),) = findings(f"First line.\n{text}\n")
    assert line == 2
    assert phrase in text
    assert instead


@pytest.mark.parametrize(
    "text",
    [
        "There is no queue.",
        "The message is no longer in the log.",
        "A renewed lease of the store.",
        "Forgood, whereabouts, lively.",
    ],
)
def test_plain_english_is_not(text: str) -> None:
    assert list(findings(text)) == []
