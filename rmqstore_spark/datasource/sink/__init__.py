"""Writes: encodes Spark's rows as records, and sends them to store processes or brokers.

writers      the classes that Spark calls, and what a task does
columns      finds the columns of a write (`options.parsing` checks its options)
targets      finds where to write through name servers
masters      finds the master among the replicas of a store
encode       checks rows, and encodes them as blocks with `produce.encoder`
sending      opens the stores of a task, finds their queues, and sends blocks
requests     cuts messages into requests to RocketMQ's brokers
memory       keeps memory that a task frees for its next blocks
commit       what tasks report to the driver, which commits or aborts
"""
