"""Copy stores to Parquet, whole or in part: OUTPUT/topic=NAME/date=YYYY-MM-DD/*.parquet.

The program for spark-submit; it calls `rmqstore_spark.pipelines.backfill`.
"""

import sys

from rmqstore_spark.pipelines.backfill import main

if __name__ == "__main__":
    sys.exit(main())
