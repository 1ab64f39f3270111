"""Report the failure of a job."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

from rmqstore_spark.errors import RmqStoreError

# Spark passes on an exception of its Python processes as text, after its own words.
_OURS = re.compile(r"(?:^|: )rmqstore_spark\.errors\.\w+: (.+)$", re.MULTILINE)


def run_job(body: Callable[[], int | None]) -> int:
    """Run a job; print an error of this package without a traceback.

    Returns:
        The exit code: the body's result (None is 0), or 1 for an error.
    """
    from pyspark.errors import PySparkException

    try:
        return body() or 0
    except RmqStoreError as error:
        text = str(error)
    except PySparkException as error:
        found = _OURS.findall(str(error))
        if not found:
            raise
        text = found[-1]
    except KeyboardInterrupt:
        text = "interrupted"
    print(f"error: {text}", file=sys.stderr, flush=True)
    return 1
