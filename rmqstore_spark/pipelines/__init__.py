"""Ready-made Spark jobs (docs/jobs.md): `python -m rmqstore_spark.pipelines.NAME --help`.

    backfill           copies stores to Parquet, which `parquet/` writes, or to a table, which
                       `tables/` knows
    stream_to_parquet  does the same as a stream
    verify_store       verifies stores in many tasks
    replay             writes messages again, of stores or Parquet, at a rate
    copy_topic         copies one topic

All of them parse their command line with `arguments`, and run with `running`. Those that write to
stores find out with `targets` which topics and options those need; `output_errors` reports what is
wrong with folders that others write to. The programs in `jobs/` call them, for spark-submit. Tasks
load `parquet/` or `tasks`, and no command line.

From outside it imports `datasource`, `client.brokers` and what lies below; of `cli` only
`shared.terminal`.
"""

import sys
from pathlib import Path

from rmqstore_spark.base.workers import require_spark
from rmqstore_spark.errors import InstallationError

try:
    require_spark()
except InstallationError as error:
    program = Path(sys.argv[0])  # "-m" while Python looks for the module that it is to run
    if program.name == "-m" or program.parent.name == "jobs":
        sys.exit(f"error: {error}")
    raise
