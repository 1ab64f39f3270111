"""`python -m rmqstore_spark.cli`: the same as `rmqstore`."""

from __future__ import annotations

from rmqstore_spark.cli.app import main

if __name__ == "__main__":
    main()
