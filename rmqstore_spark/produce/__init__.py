"""Turns messages into records, as a producer's client does; the only place that does so.

uniq_key      makes UNIQ_KEY, the id that a client gives each message, or a row of Spark
properties    joins the properties of a message as RocketMQ joins them
queue_choice  chooses a queue for each message
records       fills in the columns of records that messages lack, such as this machine's address
encoder       combines all of this: columns of messages to records, or to a batch for a broker

`encoder` serves the sink and `rmqstore put`. `records` alone serves callers that have complete
messages: `StoreWriter.put_batch` and the marker of a commit. This folder imports only `layout` and
what lies below.
"""
