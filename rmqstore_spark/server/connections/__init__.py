"""The connections of Spark's clients and of the command: a thread each, and RocketMQ's frames.

listener     accepts connections, and ends those that are idle or too many
transport    the socket of a connection, plain or TLS
receiver     receives requests: their bodies go straight to where they stay, if there is room
connection   reads requests, hands each to its handler, and sends the answers

It knows no request: `server.server` admits each and routes it.
"""
