"""Tests of the data source; `options`, `sink` and `stream` have folders of their own.

driving      a data source as Spark drives it, without Spark

Without Spark: test_schema, test_batch, test_replicas, test_endpoint_partitions and test_expiring
read stores and store processes; test_namesrv finds them through name servers; test_pulled_faults
and test_pulled_security pull from brokers. With Spark: test_register and test_spark_*.
"""
