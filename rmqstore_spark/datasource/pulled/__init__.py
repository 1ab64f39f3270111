"""Reads a broker of RocketMQ's own over its protocol: what a store process or a directory is else.

    spec     `BrokerSpec`: says which broker, for a task
    queue    `PulledQueue`: a queue, as far as a broker tells
    store    `PulledStore`: the topics, queues and messages of a broker

`stream.pulled_watch` follows its queues for a stream.
"""
