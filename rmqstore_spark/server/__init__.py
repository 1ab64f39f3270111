"""The process that holds a store open for writing and serves it. It knows no Spark.

process      `rmqstore serve`, from start to end
auth         where it may listen, and who may call
flight/      Arrow Flight over HTTP/2
server       a call finds its handler
calls        the calls under way, and how many there may be
budget, memory    what all clients may make the process hold
actions      small requests: topics, offsets, commits
blocks, puts streams of blocks, put or staged
view, reads  the store's files, for readers
monitoring, metrics, logs    what operators see
store_id     tells a store from every other
"""
