"""RocketMQ's remoting protocol, for both ends of a connection. It knows no topic and no store.

codec/       bytes to commands, and back
access/      signatures of requests, and the keys for them
addresses    `host:port`, parsed and as text
peerlog      log lines about other ends, a few a minute
room         room for what arrives: larger frames wait for it before they are read
inbox        the frames that arrive on a connection, read to where they stay
answers      what is sent and not read: on a connection, and over all
backlog      requests of a connection that are not finished, from both ends, and their limits
turns        what arrived in a turn of the event loop is one group, over all connections
connection   a connection: counts what requests hold until they are finished; asks, and waits
dispatch     gives each request, or all of a turn with the same code, to a handler
tls          which connections use TLS, and with which certificates
tls_session  TLS on a server's connection, with buffers that connections share
listener     accepts connections, plain and TLS on one port
server       has the connections of a port, and ends those that are idle, slow or too many
client       connects, again if it must, and asks

From outside it imports `layout.fastjson`, `base` and `errors`.
"""
