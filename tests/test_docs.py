"""The documents: what they refer to exists, and the bytes that they show are in the stores."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
)
SOURCES = sorted(
    path
    for folder in ("rmqstore_spark", "jobs", "tools", "benchmarks", "examples", "tests")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".c", ".h", ".md", ".sh") and path != Path(__file__)
)


_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def without_code(text: str) -> str:
    """The text without fenced blocks and code spans."""
    return re.sub(r"`[^`\n]*`", "", _FENCED.sub("", text))


def headings(page: Path) -> list[str]:
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    return [title.strip() for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]


def anchors(page: Path) -> list[str]:
    """The ids that GitHub gives a page's headings."""
    return [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings(page)]


# ---- from the code to the documents --------------------------------------------------------------


class Reference(NamedTuple):
    """A page that a source names, and the sections behind its name."""

    page: str
    sections: list[str]


_SECTIONS = r'(?:,? ?(?:and )?"[^"]+"(?: \([^)]*\))?)*'
_REFERENCE = re.compile(rf"docs/([\w/-]+\.md)`?(?:,? ({_SECTIONS}))?")


def references(source: str) -> Iterator[Reference]:
    """What a source refers to; a reference may be broken into several comment lines."""
    text = re.sub(r"\n[ \t]*(?:#|\*|//)?[ \t]*", " ", source)
    for found in _REFERENCE.finditer(text):
        yield Reference(found[1], re.findall(r'"([^"]+)"', found[2] or ""))


def test_references_are_understood() -> None:
    source = 'a (docs/a.md, "One\n    two" (x) and "Three"). `docs/b.md`, "Four"; "no" docs/c.md.'
    assert list(references(source)) == [
        Reference("a.md", ["One two", "Three"]),
        Reference("b.md", ["Four"]),
        Reference("c.md", []),
    ]


def test_sources_refer_to_pages_and_sections_that_exist() -> None:
    found = [
        (name_of(path), reference)
        for path in SOURCES
        for reference in references(path.read_text(encoding="utf-8"))
    ]
    assert len(found) > 20
    missing = [
        (source, page, section)
        for source, (page, sections) in found
        for section in sections or [""]
        if not (DOCS / page).is_file() or (section and section not in headings(DOCS / page))
    ]
    assert missing == []


# ---- between the documents -----------------------------------------------------------------------

_LINK = re.compile(r"!?\[[^]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in _LINK.findall(without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(link)
    assert broken == []


def linked(page: Path) -> set[Path]:
    """The files that a page links to."""
    links = _LINK.findall(page.read_text(encoding="utf-8"))
    return {(page.parent / link.partition("#")[0]).resolve() for link in links}


def test_an_index_names_every_page() -> None:
    """That of docs/, or that of the page's folder."""
    named = {
        each for index in [DOCS / "README.md", *DOCS.rglob("index.md")] for each in linked(index)
    }
    assert set(DOCS.rglob("*.md")) - {DOCS / "README.md"} <= named


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_page_leads_out_of_the_project(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"\S*shared/\S*|/(?:home|root)/\S*", text) == []


def test_tests_that_the_documents_name_exist() -> None:
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in [path.stem, *re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))]
    }
    named = {
        (page.name, name)
        for page in DOCS.rglob("*.md")
        for name in re.findall(r"\btest_\w+", page.read_text(encoding="utf-8"))
    }
    assert [pair for pair in sorted(named) if pair[1] not in defined] == []


# ---- the bytes in the documents ------------------------------------------------------------------


class Dump(NamedTuple):
    """Bytes that docs/format.md shows, and where they are."""

    store: str
    path: str
    offset: int
    lines: list[str]


def dumps() -> list[Dump]:
    text = (DOCS / "format.md").read_text(encoding="utf-8")
    found = re.findall(
        r"<!-- bytes: ([\w-]+)/(\S+) @ (\d+) -->\n```text\n(.*?)```", text, re.DOTALL
    )
    return [Dump(store, path, int(at), body.splitlines()) for store, path, at, body in found]


_DUMP_LINE = re.compile(r" *(\d+)  ((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:$|  +(.*))")


def test_the_format_shows_dumps() -> None:
    assert len(dumps()) == (DOCS / "format.md").read_text(encoding="utf-8").count("<!-- bytes")
    assert len(dumps()) >= 8


def assert_means(data: bytes, value: str, line: str) -> None:
    """Check the value of a field that is shown next to its bytes."""
    if re.fullmatch(r"-?\d+", value):
        assert int(value) == int.from_bytes(data, "big", signed=True), line
    elif value.startswith("0x"):
        assert value == f"0x{data.hex().upper()}", line
    elif value.startswith('"'):
        assert value == f'"{data.decode()}"', line
    elif host := re.fullmatch(r"([\d.]+):(\d+)", value):
        address = ".".join(map(str, data[:4]))
        assert host.groups() == (address, str(int.from_bytes(data[4:], "big"))), line
    else:
        assert value.encode() == data.replace(b"\1", "␁".encode()).replace(b"\2", "␂".encode())


@pytest.mark.parametrize("dump", dumps(), ids=lambda dump: f"{dump.path}@{dump.offset}")
def test_shown_bytes_are_those_of_the_store(dump: Dump, golden: Callable[[str], Path]) -> None:
    shown = b""
    for line in dump.lines:
        parts = _DUMP_LINE.fullmatch(line)
        assert parts is not None, line
        offset, data = int(parts[1]), bytes.fromhex(parts[2])
        assert offset == len(shown), line
        shown += data
        _, gap, value = (parts[3] or "").partition("  ")
        if gap:
            assert_means(data, value.strip(), line)
    with (golden(dump.store) / dump.path).open("rb") as file:
        file.seek(dump.offset)
        assert file.read(len(shown)) == shown


def test_the_tests_that_show_features_are_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (DOCS / "features.md").read_text())
    assert len(named) > 60
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), (file, test)
