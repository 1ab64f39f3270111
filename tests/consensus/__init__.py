"""Members of a DLedger group, played in one process (docs/reliability.md, "A DLedger group").

simulator    a group with a simulated clock, network and disks
disks        what a member has stored: what a kill keeps, and what a power cut takes
checks       what must hold
runs         a group with every fault, from a seed
playing      plays many seeds, and counts what happened
compiled     the same with modules that mypyc has compiled, more than three times as fast
lies         what no peer says that keeps the rules
elections    how long it takes to elect one that is behind in terms
mutations    members and disks that keep one rule less, and the seeds that find them
driver/      real members: their files, and groups of them and of RocketMQ's
"""
