"""Reading a store, without Spark: topics, queues, offsets, messages, and what is wrong with it."""
