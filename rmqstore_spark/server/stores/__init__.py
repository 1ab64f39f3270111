"""What a process serves: a store that it writes, or stores that it only reads.

served     the interface of a served store, as the handlers of calls see it
written    a store that this process writes
foreign    a store that another process writes, or nobody: served read-only
by_name    finds the store that a call is about, by its name
"""
