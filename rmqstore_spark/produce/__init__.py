"""Turns messages into records, as a producer's client does; the only place that does so.

addresses     finds this machine's address, which messages give as bornHost
uniq_key      makes UNIQ_KEY, the id that a client gives each message; `hexadecimal` writes it
row_key       makes UNIQ_KEY of a row of Spark, the same one when the row is written again
properties    joins the properties of a message as RocketMQ joins them
queue_choice  chooses a queue for each message
records       fills in the columns of records that messages lack
encoder       combines all of this: columns of messages to records
batch_body    encodes messages as the body of a request that sends a batch to a broker

`encoder` serves the sink and `rmqstore put`. `records` alone serves callers that have complete
messages: `StoreWriter.put_batch` and the marker of a commit. This folder imports only `layout` and
what lies below.
"""
