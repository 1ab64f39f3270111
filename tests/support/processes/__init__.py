"""Processes for tests, and what they inherit and say.

forked       processes that begin where the imports end: forks of one
serving      stores that are served, by this process or by one of their own
committer    a process that commits micro-batches
delaying     one that delivers delayed messages
halving      one that puts and ends transactional messages
expiring     one that removes old segments
live_writer  one that writes a store as a broker does
loops        a server of asyncio, in a thread
ports        ports for servers that must know theirs before they listen
jvm          Spark's JVM; `driverlog` reads what its driver logs
alerts       the alerts of conf/monitoring, over what a process exposes
surroundings what a process inherits from its parent; `without_pandas` hides pandas from one, and
             `quick_workers` lets Spark's begin where the imports end
"""
