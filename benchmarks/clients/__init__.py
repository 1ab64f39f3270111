"""A store process as a broker, and RocketMQ's own broker, in turns with the same clients.

Without RocketMQ's own, the C++ client alone sends to the store process.

figures        all of it, and what it needs
rounds         how long and how often something is measured; `BENCH_CLIENTS_PART` makes it shorter
brokers        starts both brokers beside a name server, and creates their topics
load           the Java client that measures (`Load.java`)
java_clients   messages sent, batches sent, messages consumed, the time to a consumer that waits
cpp_load       the C++ client that measures, as a process
cpp_client     messages sent; against recorded figures where RocketMQ's own broker is missing
held_pulls     what pulls that wait cost a store process
spark          Spark reads from and writes to RocketMQ's own broker, against its Java clients
"""
