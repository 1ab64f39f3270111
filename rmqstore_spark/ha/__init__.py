"""Replication of the log between a master and its slaves, over a broker's HA protocol.

    frames            the bytes on the wire, to values and back
    connection        a connection of either end, plain or TLS
    follower          follows a master: connects, again and again, until it is closed
    session           one connection to a master: asks, compares, receives, reports
    follower_progress  how far behind its master a follower is
    broker_link       a connection to a broker, for a thread without an event loop
    master_broker     asks a master's broker for topics, groups and progress, and copies them
    group_tables      the same for a follower of a DLedger group
    group_queue_ends  asks the group's other members where queues end
    master            lets slaves connect
    slave_connection  one connection of a slave: sends it the log, takes its reports
    replication       starts what the role of a store needs

Bytes arrive in `session` and go into the store through `StoreWriter.replica`. They leave a master
from `StoreWriter.published_log`. Only `engine` and what lies below it, such
as `remoting`, may be imported.
"""
