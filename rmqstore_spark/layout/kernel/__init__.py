"""The loops over bytes: `c/`, if it could be compiled, else `reference/`, the same in NumPy.

`RMQSTORE_KERNEL=plain` in the environment selects the NumPy reference (the tests run both).
Otherwise the compiled kernel is used; if it is missing, a warning is logged once.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import ModuleType

from rmqstore_spark.layout.kernel.reference import plain

_PARENT = Path(__file__).resolve().parents[3]
_IN_A_CLONE = (
    "This folder is a clone, whose sources hide a package that is installed: start Python in "
    "another folder. To compile the kernel in the clone, run `python setup.py build_ext --inplace` "
    "there, with a C compiler present."
)
_INSTALLED = "Install the package again with a C compiler present."


def _choose() -> ModuleType:
    if os.environ.get("RMQSTORE_KERNEL") == "plain":
        return plain
    try:
        from rmqstore_spark.layout.kernel import _kernel
    except ImportError:
        logging.getLogger(__name__).warning(
            "rmqstore-spark in %s runs without its compiled kernel: everything works, but more "
            "slowly. %s",
            _PARENT,
            _IN_A_CLONE if (_PARENT / "setup.py").is_file() else _INSTALLED,
        )
        return plain
    return _kernel


active: ModuleType = _choose()
COMPILED: bool = active is not plain
pread_spans = active.pread_spans
