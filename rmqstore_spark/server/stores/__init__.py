"""What a process serves: a store that it writes, or stores that it only reads.

served   the interfaces of a store that is served, and of all that a process serves
written  a store that this process writes, with its replication
sidecar  stores that other processes write, or nobody: served read-only
"""
