"""Rounds of faults, each on a store that the rounds before it have left.

writer       rounds of one writer that is killed or loses its power; `Tally` counts what came of it
life         one life of that writer
disk         full disks
lost_end     the end of the log is damaged
service      the store process and its clients
replication  a master and a follower
staging      clients that stage and commit batches
accounts     rounds of a process that says what it does, and what the store must hold then
process      what such processes have in common
delays, transactions, expiry   three of them
remoting/    a broker, its name server and their clients, on RocketMQ's protocol
"""
