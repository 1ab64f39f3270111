"""The documentation as a site: it loads nothing from elsewhere, and a browser searches it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pytest
from markdown_it import MarkdownIt

from tests.docs.test_errors import sections
from tests.support.processes.chromium import Chromium, find_chromium
from tests.support.waiting import eventually

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
MOST_BYTES: Final = 250_000
"""Of a page; all pages share one script, one style and, when searched, one index."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


class Elements(HTMLParser):
    """Counts what Markdown makes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.feed(text)

    def handle_starttag(self, tag: str, _: list[tuple[str, str | None]]) -> None:
        if tag in ("h1", "h2", "h3", "h4", "img", "li", "pre", "strong", "table", "td"):
            self.counts[tag] += 1


class Loads(HTMLParser):
    """Collects the addresses that a browser loads with a page, and the links in it."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a":
            self.links.append(given.get("href") or "")
        elif tag != "link" or given.get("rel") not in ("canonical", "prev", "next"):
            self.loads += [given[name] or "" for name in ("href", "src", "srcset") if name in given]


def pages(site: Path) -> Iterator[tuple[Path, Loads]]:
    for page in sorted(site.rglob("*.html")):
        found = Loads()
        found.feed(page.read_text(encoding="utf-8"))
        yield page, found


def test_a_page_loads_nothing_from_elsewhere(site: Path) -> None:
    for page, found in pages(site):
        assert found.loads
        assert [each for each in found.loads if re.match(r"(\w+:)?//", each)] == [], page
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        assert re.findall(r"(?:@import|url\()\s*[\"']?(?:\w+:)?//[^)]*", text) == [], style


def test_links_lead_to_files_of_the_site(site: Path) -> None:
    count = 0
    for page, found in pages(site):
        for link in found.links:
            target = link.partition("#")[0]
            if target and not re.match(r"\w+:", target):
                count += 1
                assert (page.parent / target).resolve().is_file(), (page, link)
    assert count > 1_000


@pytest.mark.parametrize(
    "page", [*sorted(each.stem for each in DOCS.glob("*.md")), "project/CHANGELOG"]
)
def test_a_page_has_the_same_parts_as_on_a_forge(site: Path, page: str) -> None:
    """Where the two kinds of Markdown differ, a list or a block of code would be plain text."""
    source = ROOT / "CHANGELOG.md" if page.startswith("project") else DOCS / f"{page}.md"
    forge = MarkdownIt("gfm-like", {"linkify": False}).render(source.read_text("utf-8"))
    built = (site / f"{page.replace('README', 'index')}.html").read_text("utf-8")
    article = re.findall(r"<article.*?</article>", built, re.DOTALL)[0]
    assert Elements(article).counts == Elements(forge).counts


def test_pages_are_light(site: Path) -> None:
    sizes = {page: page.stat().st_size for page in site.rglob("*.html")}
    assert {page: size for page, size in sizes.items() if size > MOST_BYTES} == {}


def test_links_have_titles_and_pages_no_words_for_a_forge(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert re.findall(r"<a [^>]*>[\w-]+\.md</a>", text) == [], page
        assert "on a forge, the modules" not in text
    home = (site / "index.html").read_text(encoding="utf-8")
    assert '<a href="kafka.html">Migrate from Spark\'s Kafka source</a>' in home
    assert '<a href="tutorials/pair.html">A pair of stores' in home


def test_signatures_have_values_in_place_of_constants(site: Path) -> None:
    text = re.sub(r"<[^>]*>", "", (site / "api/client.html").read_text(encoding="utf-8"))
    assert re.search(r"timeout_s: +float += +30\.0,\s+retries: +int += +3,", text)


def test_a_bar_in_a_table_is_a_bar(site: Path) -> None:
    text = (site / "options.html").read_text(encoding="utf-8")
    assert "TagA || TagB" in text.replace("&quot;", '"')
    assert r"\|" not in text


@pytest.mark.skipif(
    find_chromium() is None, reason="no Chromium is installed (apt-get install chromium)"
)
def test_errors_and_options_are_found(site: Path, tmp_path: Path) -> None:
    """In a folder that a browser opens, without a server: by a text that is pasted, and by name."""
    wanted = ("listens there already", "has no pyspark", "have expired", "verify failed")
    chosen = [each for each in sections() if any(words in each.title for words in wanted)]
    assert len(chosen) == len(wanted)
    looked_up = {" ".join(each.text.replace("...", " ").split()): each.title for each in chosen}
    looked_up |= {"commitGroup": "Spark options and columns", "promote": "The rmqstore command"}
    looked_up |= dict.fromkeys(("dead letter queue", "delay message"), "Use RocketMQ's clients")
    looked_up |= {"No route info of this topic": "No route info of this topic"}
    item = "document.querySelector('.md-search-result__item')"
    with Chromium(tmp_path / "profile") as browser:
        for text, title in looked_up.items():
            browser.open(f"{(site / 'index.html').as_uri()}?q={quote(text)}")
            eventually(lambda: browser.value(f"{item} !== null"))
            assert title in browser.value(f"{item}.innerText")
        assert [each for each in browser.requested if not each.startswith(("file:", "data:"))] == []
        assert browser.said == []
