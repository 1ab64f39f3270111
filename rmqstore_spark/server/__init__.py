"""The store process: writes a store and serves it, or serves stores read-only. It knows no Spark.

process      runs `rmqstore serve` from start to shutdown
system       what the process takes of the machine: memory, open files, the disk
member/      `rmqstore member`: a process that is a member of a DLedger group
stores/      what is served: a store that is written here, or stores of other processes
server       listens, on a port, a unix socket, or both
connections/ receives requests, each connection with a thread of its own
callers      whom a connection acts for, and what it may do
requests     admits each request, and routes it to its handler
table        the requests that clients may send, and what each needs
calls        limits the number of calls in progress
budget       limits the memory that all clients together can use
actions      answers single requests: topics, offsets, commits, queries
puts         reads streams of blocks, and puts or stages them
put_turns    stores the puts of many clients that each wait for theirs, in one thread
view, reads  give readers access to the store's files
monitoring, metrics    show operators the state of the process
status/      pages for people: figures, and the messages of the stores

From outside it imports `engine`, `consensus`, `ha`, `broker`, `wire`, `reader` and what lies
below, but no client.
"""
