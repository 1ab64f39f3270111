"""Spares a command the imports that take most of its time, and that it may have no use for."""

from __future__ import annotations

import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from threading import RLock
from types import ModuleType
from typing import Any, Final, cast

_FUNCTIONS: Final = "pyarrow.compute"


def spare_slow_imports() -> None:
    """Hide pandas, and put off the work of `pyarrow.compute` until something of it is used."""
    sys.meta_path.insert(0, _SlowImports())


class _SlowImports:
    """Says that pandas is not installed, and that `pyarrow.compute` is a `_Functions`.

    pyarrow imports pandas with its first scalar if it can. That takes more time and memory than
    all other modules of a command, and no command uses it.
    """

    def find_spec(self, name: str, path: Any = None, *_: object) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name != _FUNCTIONS or (real := PathFinder.find_spec(name, path)) is None:
            return None
        return ModuleSpec(name, _Loader(real), origin=real.origin)


class _Loader(Loader):
    def __init__(self, real: ModuleSpec) -> None:
        self._real = real

    def create_module(self, _: ModuleSpec) -> ModuleType:
        return _Functions(self._real)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: that is what is put off."""


class _Functions(ModuleType):
    """`pyarrow.compute`, which makes functions of Arrow's 300 when it is first used.

    `importlib.util.LazyLoader` would do, but in Python 3.11 a second thread sees half of a module.
    """

    def __init__(self, real: ModuleSpec) -> None:
        super().__init__(real.name)
        self._real = real
        self._lock = RLock()
        self._is_made = False

    def __getattr__(self, name: str) -> Any:  # of what it does not have yet
        if name.startswith("__"):  # the import system asks
            raise AttributeError(name)
        with self._lock:
            if not self._is_made:
                real = module_from_spec(self._real)
                cast("Loader", self._real.loader).exec_module(real)
                self.__dict__.update(
                    (key, each) for key, each in vars(real).items() if not key.startswith("__")
                )
                self._is_made = True
        return self.__getattribute__(name)
