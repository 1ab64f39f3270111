"""Copy stores to Parquet as a stream: existing messages only, or new ones too.

The program for spark-submit; it calls `rmqstore_spark.pipelines.stream_to_parquet`.
"""

import sys

from rmqstore_spark.pipelines.stream_to_parquet import main

if __name__ == "__main__":
    sys.exit(main())
