"""Files of properties, as java.util.Properties reads them: a broker loads the same file."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import javaproperties
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.engine.config.properties_file import edit_properties, parse_properties

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)

# The expectations are what `java PropertiesOf.java FILE...` (beside this file) printed, OpenJDK 17.
CASES: dict[str, dict[str, str]] = {
    "a=1\nb = 2\r\nc:3\rd 4\n": {"a": "1", "b": "2", "c": "3", "d": "4"},
    "# no\n  ! no\n\n a=1": {"a": "1"},
    "a=1\\\n   2\\\n3": {"a": "123"},
    "a=1\\\r\n\t2": {"a": "12"},
    "a=1\\\\\n2": {"a": "1\\", "2": ""},
    "# a\\\nb=1": {"b": "1"},
    "a=\\\n#1": {"a": "#1"},
    "a\\ b=c\\=d\\\\": {"a b": "c=d\\"},
    "a\\:b\\=c:1": {"a:b=c": "1"},
    "a=\\u4e3b\\u9898 \\ud83d\\ude00": {"a": "主题 😀"},
    "a=主题 😀 é": {"a": "主题 😀 é"},
    "a=1\na=2": {"a": "2"},
    "alone": {"alone": ""},
    "a=b=c": {"a": "b=c"},
    "a==b": {"a": "=b"},
    "a = : b": {"a": ": b"},
    "a= 1  ": {"a": "1  "},
    "=1": {"": "1"},
    "a=1\\": {"a": "1"},
    "a=\\t\\n\\r\\f\\x\\'": {"a": "\t\n\r\fx'"},
    "a=C:\\data": {"a": "C:data"},
    "a\x0bb=\x85\u20281": {"a\x0bb": "\x85\u20281"},
    "\ufeffa=1": {"\ufeffa": "1"},
}
REFUSED = ["a=\\u12", "a=\\u", "b=1\na\\u00g0=1"]


@pytest.mark.parametrize("text", CASES, ids=ascii)
def test_properties_as_java_reads_them(text: str) -> None:
    assert parse_properties(text) == CASES[text]


@pytest.mark.parametrize("text", REFUSED)
def test_what_java_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="line "):
        parse_properties(text)


@pytest.mark.parametrize("text", [text for text in CASES if text[0] != "\ufeff"], ids=ascii)
def test_an_edited_file_has_the_changes_and_all_else(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file.properties"
    path.write_bytes(text.encode())
    changes = {"a": "new value", "added": " 主题=\\"}
    assert parse_properties(edit_properties(path, changes)) == {**CASES[text], **changes}
    assert parse_properties(edit_properties(path, {})) == CASES[text]


def test_an_edited_file_keeps_comments_and_order(tmp_path: Path) -> None:
    path = tmp_path / "file.properties"
    path.write_text("# one\nb : 1\n\n! two\na=主题\nb=2\nc=3", encoding="utf-8")
    edited = edit_properties(path, {"b": "9", "c": "3"})
    assert edited == "# one\nb=9\n\n! two\na=主题\nc=3"


def test_a_broken_escape_is_named_with_its_line() -> None:
    with pytest.raises(ValueError, match="line 2: "):
        parse_properties("a=1\nb=\\u12")
    with pytest.raises(ValueError, match="line 5: "):
        parse_properties("# a\r\n\rb=\\\n1\nc=\\u12")


def test_half_a_character_is_refused() -> None:
    with pytest.raises(ValueError, match=r"line 2: .*surrogates"):
        parse_properties("a=1\nb=\\ud83d")


def test_a_file_of_continued_lines_takes_no_hours() -> None:
    assert parse_properties("a=" + "1\\\n" * 200 + "1") == {"a": "1" * 201}
    with pytest.raises(ValueError, match="more than 200 lines end with a backslash"):
        parse_properties("a=" + "1\\\n" * 201)


@given(st.dictionaries(TEXTS, TEXTS))
def test_any_properties_are_read_as_they_were_written(values: dict[str, str]) -> None:
    assert parse_properties(javaproperties.dumps(values, timestamp=False)) == values


PIECES = [
    "a", "b", "=", ":", " ", "\t", "\f", "\n", "\r", "\r\n", "#", "!", "\\u0041", "\\u4e3b",
    "\\ud83d\\ude00", "\\u12", "\\n", "é", "主", "😀", "\\\n  ", "\\\r\n", "\\ ", "\\=", "\\:",
    "\\\\", "\x0b", "\x85", "\u2028", "\\x",
]  # fmt: skip


def test_random_files_are_read_as_java_reads_them(tmp_path: Path) -> None:
    java = java_with_compiler()
    randomly = random.Random(8)
    # A line that begins with a letter: Java takes a comment behind an empty, continued line for a
    # comment, and an empty line that the end of the file continues for a key.
    texts = [
        "".join(["x", *randomly.choices(PIECES, k=randomly.randrange(15)), "x"]).replace(
            "\n", "\nx"
        )
        for _ in range(500)
    ]
    texts += [*CASES, *REFUSED]
    paths = [tmp_path / str(number) for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text.encode())
    program = Path(__file__).with_name("PropertiesOf.java")
    answers = subprocess.check_output([java, program, *paths], text=True).splitlines()
    assert answers.count("refused") > 10
    for text, answer in zip(texts, answers, strict=True):
        assert outcome(text) == wanted(answer), ascii(text)


def java_with_compiler() -> str:
    home = os.environ.get("JAVA_HOME")
    compiler = shutil.which("javac", path=f"{home}/bin" if home else None)
    if compiler is None:
        pytest.skip("needs a JDK: no javac in JAVA_HOME, or without it in PATH")
    return str(Path(compiler).with_name("java"))


def outcome(text: str) -> dict[str, str] | None:
    try:
        return parse_properties(text)
    except ValueError:
        return None


def wanted(answer: str) -> dict[str, str] | None:
    if answer == "refused":
        return None
    pairs = (pair.split("=") for pair in answer.split())
    return {text_of(key): text_of(value) for key, value in pairs}


def text_of(digits: str) -> str:
    return bytes.fromhex(digits).decode("utf-16-be")
