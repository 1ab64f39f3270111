"""What a process serves: a store that it writes, or stores that it only reads.

served     the interface of a served store, as the handlers of calls see it
service    the interface of all that a process serves, from its start to its end
written    a store that this process writes, with its replication
foreign    a store that another process writes, or nobody: served read-only
sidecar    the stores of a process that serves them read-only
by_name    finds the store that a call is about, by its name
"""
