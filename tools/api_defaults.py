"""An extension of Griffe: a signature in the site shows the value of a default, not its name.

`timeout_s: float = _TIMEOUT` reads `timeout_s: float = 30.0`: a reader of the site cannot see the
constant of the module. (Griffe reads the sources that the pages of docs/api show.)
"""

from __future__ import annotations

from typing import Any

import griffe


class Defaults(griffe.Extension):
    """Replaces each default that names a constant of the package."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change the functions of a package that has been read."""
        for module in _modules(pkg):
            for each in [module, *module.classes.values()]:
                for function in [] if each.is_alias else each.functions.values():
                    if not function.is_alias:
                        _show_values(pkg, function)


def _modules(module: griffe.Module) -> list[griffe.Module]:
    below = [each for each in module.modules.values() if not each.is_alias]
    return [module, *(found for each in below for found in _modules(each))]


def _show_values(pkg: griffe.Module, function: griffe.Function) -> None:
    for parameter in function.parameters:
        if not isinstance(parameter.default, griffe.ExprName):
            continue
        path = parameter.default.canonical_path.removeprefix(f"{pkg.path}.")
        try:
            constant = pkg[path]
        except KeyError:
            continue  # of another package
        if constant.is_attribute and constant.value is not None:
            parameter.default = constant.value
