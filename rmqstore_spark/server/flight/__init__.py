"""Serves Arrow Flight over HTTP/2, and accounts for every byte of every connection.

A client may send only the bytes that it was granted room for, so the memory of the process stays
within its budgets. In the order in which a call passes them:

    listener    accepts connections, and limits their number
    transport   reads and writes a socket, plain or TLS
    frames      encodes and decodes HTTP/2: frame headers, header blocks, errors
    allowance   limits the frames that carry nothing
    connection  reads frames, answers pings, grants room
    outbound    writes frames, within the client's windows
    stream      handles one call, from its first message to its status
    inbox       puts the messages of a call together, under flow control
    received    a message of a call, and the room that it takes
    status      says how a call ends
    messages    encodes and decodes Flight's protobuf messages
    blockbatch  finds the block in a record batch

`server.server` imports `Listener`; handlers only see `Stream`.
"""
