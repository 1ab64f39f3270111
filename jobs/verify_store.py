"""Verify stores in many Spark tasks: each file of a log is one task.

The program for spark-submit; it calls `rmqstore_spark.pipelines.verify_store`.
"""

import sys

from rmqstore_spark.pipelines.verify_store import main

if __name__ == "__main__":
    sys.exit(main())
