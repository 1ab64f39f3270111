"""Turns messages into records, as a producer's client does; the only place that does so.

addresses     finds this machine's address, which messages give as bornHost
uniq_key      makes UNIQ_KEY, the id that a client gives each message
properties    joins the properties of a message as RocketMQ joins them
queue_choice  chooses a queue for each message
records       fills in the columns of records that messages lack
encoder       combines all of this: columns of messages to records

`encoder` serves the sink and `rmqstore put`. `records` alone serves callers that have complete
messages: `StoreWriter.put_batch` and the marker of a commit. This folder imports only `layout` and
what lies below.
"""
