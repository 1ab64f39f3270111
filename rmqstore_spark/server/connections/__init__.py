"""The connections of Spark's clients and of the command: a thread each, and RocketMQ's frames.

listener    accepts connections, and ends those that are idle or too many
receiver    receives requests: their bodies go straight to where they stay, if there is room
connection  reads requests, hands each to its handler, and sends the answers

Their sockets, plain or TLS, are of `wire.transport`. It knows no request: `server.requests`
admits each and routes it.
"""
