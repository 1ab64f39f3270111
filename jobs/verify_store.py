"""Verify stores, the work spread over Spark: each file of a log is one task.

The program for spark-submit; `rmqstore_spark.pipelines.verify_store` does it.
"""

import sys

from rmqstore_spark.pipelines.verify_store import main

if __name__ == "__main__":
    sys.exit(main())
