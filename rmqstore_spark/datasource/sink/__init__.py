"""Writes: encodes Spark's rows as records, and sends them to store processes or brokers.

writers      the classes that Spark calls
options, columns    check a write's options, and find its columns
targets      finds where to write through name servers
task         writes one partition
target_stores    opens the stores of a task, and finds their queues
encode       checks rows, and encodes them as blocks with `produce.encoder`
sending      sends blocks to the stores
requests     cuts messages into requests to RocketMQ's brokers
outcome      what a task reports to the driver
commit       commits or aborts on the driver
"""
