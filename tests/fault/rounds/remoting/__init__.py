"""Rounds of faults over RocketMQ's protocol.

cluster       a store process that is a broker, and its name server
application   senders and a consumer in Python: the process; `broker` kills it and the cluster
lives         the processes of a real client, over all its lives
consuming     lives that send and consume, with RocketMQ's C++, Node or Java client
transacting   lives that send transactional messages; `producer` is the process in Python
kinds         the clients that are installed
clients       rounds that kill a real client or its cluster, at random and in each phase
"""
