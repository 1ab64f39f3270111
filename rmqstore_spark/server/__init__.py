"""The store process: holds a store open for writing, and serves it. It does not know Spark.

process      runs `rmqstore serve` from start to shutdown
auth         checks where the process may listen, and who may call
flight/      speaks Arrow Flight over HTTP/2
server       routes each call to its handler
calls        limits the number of calls in progress
budget, memory    limit the memory that all clients together can use
actions      answers single requests: topics, offsets, commits, queries
blocks, puts read streams of blocks, and put or stage them
view, reads  give readers access to the store's files
monitoring, metrics, logs    show operators the state of the process
"""
