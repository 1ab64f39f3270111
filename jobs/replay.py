"""Replay messages of stores, or of a backfill's Parquet, into stores.

The program for spark-submit; it calls `rmqstore_spark.pipelines.replay`.
"""

import sys

from rmqstore_spark.pipelines.replay import main

if __name__ == "__main__":
    sys.exit(main())
