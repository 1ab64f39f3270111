"""Each Python with this folder on its path imports this: those of Spark end their start here."""

import sys

_OF_SPARK = ("pyspark.daemon", "pyspark.sql.streaming.python_streaming_source_runner")

if sys.platform == "linux" and sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2] in _OF_SPARK:
    import worker_forks  # type: ignore[import-not-found]

    worker_forks.hand_over(sys.orig_argv[2:])
