"""Copy stores to Parquet as a stream: what is there, or what comes as well.

The program for spark-submit; `rmqstore_spark.pipelines.stream_to_parquet` does it.
"""

import sys

from rmqstore_spark.pipelines.stream_to_parquet import main

if __name__ == "__main__":
    sys.exit(main())
