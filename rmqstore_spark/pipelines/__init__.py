"""Ready-made Spark jobs (docs/jobs.md): `python -m rmqstore_spark.pipelines.NAME --help`.

    backfill           copies stores to Parquet, which `parquet/` writes, or to a table, which
                       `tables/` knows; `backfill_arguments` are its options
    stream_to_parquet  does the same as a stream; `following` prints its progress
    verify_store       verifies stores in many tasks (`verify_task`), and prints its `progress`
    replay             writes messages again, of stores or Parquet (`replay_parquet`), at a rate
                       (`pacing`); `replay_arguments` are its options
    copy_topic         copies one topic; `targets` has the options of the sink, and `target_topics`
                       creates what is missing

All of them use `arguments`, `session` and `failures`. The programs in `jobs/` call them,
for spark-submit. Tasks load `parquet/`, `pacing` or `verify_task`, and no command line.

From outside it imports `datasource`, `client.brokers` and what lies below; of `cli` only
`shared.usage`.

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
