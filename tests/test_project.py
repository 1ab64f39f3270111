"""The project as a whole: what its modules export, and what it says of itself."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import rmqstore_spark

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(rmqstore_spark.__path__, "rmqstore_spark.")
    # The kernel is optional; its Python side is in the list.
    if not module.name.endswith("._kernel")
)
PACKAGES = sorted(
    module.name
    for module in pkgutil.walk_packages(rmqstore_spark.__path__, "rmqstore_spark.")
    # Its modules are the commands, which `rmqstore --help` lists.
    if module.ispkg and module.name != "rmqstore_spark.cli.commands"
)


@pytest.mark.parametrize("name", ["rmqstore_spark", *MODULES])
def test_all_names_what_exists(name: str) -> None:
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", ())
    assert len(set(exported)) == len(exported)
    assert [missing for missing in exported if not hasattr(module, missing)] == []


def test_a_public_class_has_a_name_of_its_own() -> None:
    homes: dict[str, list[str]] = {}
    for file in sorted((ROOT / "rmqstore_spark").rglob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


@pytest.mark.parametrize("name", ["rmqstore_spark", *PACKAGES])
def test_a_folders_map_names_all_that_is_in_it(name: str) -> None:
    package = importlib.import_module(name)
    text = package.__doc__ or ""
    heads = re.findall(r"^ *(\w+/?(?:, \w+/?)*) +\S", text, re.MULTILINE)
    lines = Counter(word for head in heads for word in re.findall(r"\w+", head))
    mentioned = {*lines, *re.findall(r"`(\w+)/?`", text)}
    inside = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert inside - mentioned - {"__main__", "_kernel"} == set()
    assert {each for each in inside if lines[each] > 1} == set()


def test_version_is_the_distributions() -> None:
    assert rmqstore_spark.__version__ == importlib.metadata.version("rmqstore-spark")


def test_changelog_knows_the_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## \[([^]]+)\]", changelog, re.MULTILINE)
    assert rmqstore_spark.__version__ in sections or sections[0] == "Unreleased"


def test_the_reader_needs_no_spark_and_no_terminal() -> None:
    program = (
        "import sys, rmqstore_spark.reader\n"
        "print(sorted({'pyspark', 'typer', 'click', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, cwd=ROOT, text=True
    )
    assert done.stdout.strip() == "[]"
