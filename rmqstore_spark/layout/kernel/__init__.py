"""The loops over bytes: `c/`, if it could be compiled, else `reference/`, the same in NumPy.

`RMQSTORE_KERNEL=plain` in the environment selects the NumPy reference (the tests run both).
Otherwise the compiled kernel is used; if it is missing, a warning is logged once.
"""

from __future__ import annotations

import logging
import os
from types import ModuleType

from rmqstore_spark.layout.kernel.reference import plain


def _choose() -> ModuleType:
    if os.environ.get("RMQSTORE_KERNEL") == "plain":
        return plain
    try:
        from rmqstore_spark.layout.kernel import _kernel
    except ImportError:
        logging.getLogger(__name__).warning(
            "rmqstore-spark in %s runs without its compiled kernel. Everything works, but more "
            "slowly. To compile the kernel, install from there with a C compiler present.",
            os.path.dirname(plain.__file__),
        )
        return plain
    return _kernel


active: ModuleType = _choose()
COMPILED: bool = active is not plain
pread_spans = active.pread_spans
