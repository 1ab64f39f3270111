"""Rounds of faults, each on a store that the rounds before it have left.

table        a row for each: what runs, what is killed or broken, what must hold
driver       runs the rounds of a row: scenes, one store each; `Tally` counts what came of them
life         one life of a process that says what it does
lives        scenes of one process in many lives: killed at random, at places, at calls; power cuts
delays, transactions, expiry   what such processes do, and what the store must hold then
simulated    a store in this process, on a disk that is simulated
lost_end     the end of the log is damaged
disk         full disks
served       a store process under its clients, and connections that break
replication  a master and a follower
remoting/    a broker, its name server and their clients, on RocketMQ's protocol
"""
