"""Through Spark: queries, streams, writes, jobs."""
