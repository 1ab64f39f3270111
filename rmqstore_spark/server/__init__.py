"""The store process: writes a store and serves it, or serves stores read-only. It knows no Spark.

process      runs `rmqstore serve` from start to shutdown
stores/      what is served: a store that is written here, or stores of other processes
priority     gives the process the I/O priority idle
callers      whom a connection acts for, and what it may do
connections/ receives requests, each connection with a thread of its own
server       routes each call to its handler
calls        limits the number of calls in progress
budget, memory    limit the memory that all clients together can use
table        the requests that clients may send, and what each needs
actions      answers single requests: topics, offsets, commits, queries
blocks, puts read streams of blocks, and put or stage them
view, reads  give readers access to the store's files
monitoring, metrics, logs    show operators the state of the process

From outside it imports `engine`, `ha`, `broker`, `wire`, `reader` and what lies below, but no
client.

"""
