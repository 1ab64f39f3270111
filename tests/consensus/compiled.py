"""Plays seeds with the core and the simulator compiled by mypyc, more than three times as fast.

`build` compiles copies of the modules into a folder in `.compiled`, once for each state of them and
of the tools; a process that finds these before all others plays. In the copies, named tuples are
plain classes: mypyc makes native ones of those, whose objects cost a tenth.
"""

from __future__ import annotations

import ast
import fcntl
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

from tests.consensus.playing import Played

ROOT: Final = Path(__file__).parents[2]
_HOME: Final = ROOT / ".compiled"
_MODULES: Final = {
    "rmqstore_spark/consensus": (
        "actions", "election", "following", "ledger", "member", "messages", "pushing",
        "rejoining", "timing",
    ),
    "tests/consensus": ("checks", "disks", "lies", "playing", "runs", "simulator"),
}  # fmt: skip


def lacking() -> str:
    """Return what there must be to compile, and is not; nothing if all is there."""
    if importlib.util.find_spec("mypyc") is None:
        return "mypy is not installed"
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    if shutil.which(compiler.split()[0]) is None:
        return f"there is no C compiler ({compiler.split()[0]})"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "the headers of Python are not installed (Python.h)"
    return ""


def play(seeds: range) -> Played:
    """Play seeds as `playing.play` does, in a process of its own."""
    program = f"from tests.consensus.playing import play; print(tuple(play({seeds!r})))"
    return Played(*ast.literal_eval(printed(program)))


def printed(program: str) -> str:
    """Return what a program prints that has the compiled modules."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=build(), stdout=subprocess.PIPE, check=True, text=True
    )
    return done.stdout


@functools.cache
def build() -> Path:
    """Return the folder with the compiled modules; compile them if nobody has.

    Raises:
        RuntimeError: mypyc or the C compiler refuses a module; what they say is in it.
    """
    sources = {
        Path(folder, f"{name}.py"): (ROOT / folder / f"{name}.py").read_text(encoding="utf-8")
        for folder, names in _MODULES.items()
        for name in names
    }
    tools = sys.version, importlib.metadata.version("mypy"), Path(__file__).read_bytes()
    state = hashlib.sha256(repr((tools, sources)).encode()).hexdigest()
    home = _HOME / state[:16]
    _HOME.mkdir(exist_ok=True)
    with (_HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            _compile(sources, unfinished := _HOME / "unfinished")
            unfinished.rename(home)
    return home


def _compile(sources: dict[Path, str], into: Path) -> None:
    """Make a folder of packages that have the compiled modules, and nothing else."""
    shutil.rmtree(into, ignore_errors=True)
    for path, source in sources.items():
        (into / path).parent.mkdir(parents=True, exist_ok=True)
        (into / path).write_text(_with_classes(source), encoding="utf-8")
        for package in path.parents[:-1]:
            (into / package / "__init__.py").touch()
    done = subprocess.run(
        # Of the project's settings, some are not for copies.
        [sys.executable, "-m", "mypyc", "--config-file=", *map(str, sources)],
        cwd=into, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"mypyc could not compile the simulator:\n{done.stdout}")
    for path in sources:  # a module that was not compiled must not be taken for one that was
        (into / path).unlink()
    for leftover in ("build", ".mypy_cache"):
        shutil.rmtree(into / leftover)


def _with_classes(source: str) -> str:
    """Return a module with its named tuples as plain classes."""
    tree = ast.parse(source)
    for each in tree.body:
        if isinstance(each, ast.ClassDef) and list(map(ast.unparse, each.bases)) == ["NamedTuple"]:
            fields = [field for field in each.body if isinstance(field, ast.AnnAssign)]
            each.bases = []
            each.body = [member for member in each.body if member not in fields]
            each.body += ast.parse(_methods(each.name, fields)).body
    return ast.unparse(tree)


def _methods(name: str, fields: list[ast.AnnAssign]) -> str:
    names = [ast.unparse(field.target) for field in fields]
    own = [f"self.{each}" for each in names]
    changed = [f"changes.get('{each}', self.{each})" for each in names]
    lines = [f"def __init__(self, {', '.join(map(ast.unparse, fields))}) -> None:"]
    lines += [f"    self.{each} = {each}" for each in names]
    lines += ["def __iter__(self):", f"    return iter(({', '.join(own)},))"]
    lines += ["def __eq__(self, other):", "    return tuple(self) == tuple(other)"]
    lines += ["def _replace(self, **changes):", f"    return {name}({', '.join(changed)})"]
    return "\n".join(lines)
