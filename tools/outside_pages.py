"""A hook of MkDocs: what the pages link to outside of docs/ becomes a part of the site.

The sources link to files of the repository as a forge needs it (`../CONTRIBUTING.md`). In the site
these files are below `project/`: Markdown as pages, code as plain text, pictures as they are. So a
built site has the files of its own version, and works without a network. It also says which pages
count more in the search, and mends what the two kinds of Markdown read differently. A link that a
forge shows as a file's name has the title of its page, and a paragraph below the comment
`only on a forge` is left out.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = "project"
_PICTURES: Final = (".png", ".svg")
_BOOST: Final = {
    "applications.md": 5.0,
    "cli.md": 2.0,
    "configuration.md": 4.0,
    "errors.md": 5.0,
    "options.md": 6.0,
}
"""How much more a page counts in the search: it explains a name, and others mention it."""
_BOOST_OUTSIDE: Final = 0.5

_CODE: Final = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(?P<name>\[[\w-]+\.md)?\]\((?P<to>[^)\s#:]+)(?P<at>(?:#[^)\s]*)?\))")
_FORGE: Final = re.compile(r"^<!-- only on a forge -->\n(?:.+\n)+", re.MULTILINE)
_TITLE: Final = re.compile(r"^# (.*)$", re.MULTILINE)


def _outside_code(text: str, change: Callable[[str], str], code: Callable[[str], str]) -> str:
    """Change a text, and its fenced blocks and code spans in another way."""
    parts, at = [], 0
    for found in _CODE.finditer(text):
        parts += [change(text[at : found.start()]), code(found[0])]
        at = found.end()
    return "".join([*parts, change(text[at:])])


def _links(text: str) -> list[str]:
    found: list[str] = []

    def collect(prose: str) -> str:
        found.extend(link["to"] for link in _LINK.finditer(prose))
        return prose

    _outside_code(text, collect, str)
    return found


def _place(repository_path: str) -> str:
    """Return where a file of the repository is in the site, as if it were in docs/."""
    inside = posixpath.relpath(repository_path, "docs")
    if not inside.startswith(".."):
        return inside
    suffix = posixpath.splitext(repository_path)[1]
    return f"{FOLDER}/{repository_path}" + ("" if suffix in (".md", *_PICTURES) else ".txt")


def _origin(place: str) -> str:
    """Return the path in the repository of a page of the site."""
    if place.startswith(f"{FOLDER}/"):
        return place.removeprefix(f"{FOLDER}/")
    return f"docs/{place}"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Leave out the page for unknown addresses: its links need a server, and its root."""
    config.theme.static_templates.discard("404.html")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that pages link to, and those that these link to."""
    pages = [_origin(page.src_uri) for page in files.documentation_pages()]
    for origin in pages:  # grows
        for link in _links((ROOT / origin).read_text(encoding="utf-8")):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link))
            place = _place(path)
            is_known = files.get_file_from_path(place) is not None
            if is_known or not place.startswith(FOLDER) or not (ROOT / path).is_file():
                continue  # a link that leads nowhere is reported by MkDocs
            files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
            if path.endswith(".md"):
                pages.append(path)
    return files


def _title(page: Page) -> str:
    """Return what the menu calls a page."""
    if page.title is not None:
        return page.title
    found = _TITLE.search((ROOT / _origin(page.file.src_uri)).read_text(encoding="utf-8"))
    return found[1] if found else page.file.name


def on_page_markdown(markdown: str, page: Page, files: Files, **_: object) -> str:
    """Turn the links of a page into those of the site."""
    here = page.file.src_uri
    boost = _BOOST_OUTSIDE if here.startswith(FOLDER) else _BOOST.get(here, 1.0)
    page.meta["search"] = {"boost": boost}
    folder = posixpath.dirname(_origin(here))

    def moved(link: re.Match[str]) -> str:
        place = _place(posixpath.normpath(posixpath.join(folder, link["to"])))
        there = files.get_file_from_path(place)
        name = link["name"] or ""
        if name and there is not None and there.page is not None:
            name = f"[{_title(there.page)}"
        return f"{name}]({posixpath.relpath(place, posixpath.dirname(here) or '.')}{link['at']}"

    # In code in a table, a forge needs `\|` for a bar; MkDocs shows the backslash.
    return _outside_code(
        _FORGE.sub("", markdown),
        lambda prose: _LINK.sub(moved, prose),
        lambda code: code if code.lstrip().startswith("```") else code.replace(r"\|", "|"),
    )
