"""Arrow Flight, served over HTTP/2 connections whose every byte is accounted for.

A client may send only what it was given room for, so nobody can make the process hold more than
its budgets allow. In the order in which a call passes them:

    listener    accepts connections and limits their number
    transport   a socket, plain or TLS
    frames      HTTP/2 on the wire: frame headers, header blocks, errors
    connection  reads frames, answers pings, grants room
    outbound    writes frames, within the client's windows
    stream      one call: messages in under flow control, messages out
    status      how a call ends
    messages    Flight's protobuf messages
    blockbatch  the block in a record batch

`server.server` imports `Listener`; handlers see `Stream` alone.
"""
