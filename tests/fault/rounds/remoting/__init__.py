"""Rounds of faults over RocketMQ's protocol.

clients       scenes that kill a client or its cluster, at random and in each phase
cluster       a store process that is a broker, and its name server
lives         the processes of a client, over all its lives
plain         lives of senders and a consumer in Python; `application` is the process
consuming     lives that send and consume, with RocketMQ's C++, Node or Java client
transacting   lives that send transactional messages; `producer` is the process in Python
"""
