"""Copy one topic into a store, whole or in part, under its own name or another.

The program for spark-submit; it calls `rmqstore_spark.pipelines.copy_topic`.
"""

import sys

from rmqstore_spark.pipelines.copy_topic import main

if __name__ == "__main__":
    sys.exit(main())
