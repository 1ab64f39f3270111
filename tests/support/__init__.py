"""What several test modules share.

stores/      the golden stores, and stores that tests make or write into
messages/    messages, records and batches, as producers and Spark's tasks make them
processes/   processes and servers that tests start
recordings   what RocketMQ's servers and clients said to each other
certificates certificates for tests of TLS
pictures     pictures for the documentation
sampling     which of many places a test tries
waiting      waits for a condition
"""
