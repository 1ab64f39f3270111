"""Faults: processes killed, power cut, disks full, files damaged (docs/reliability.md).

`python -m tests.fault` runs rounds of them at length; the tests run a part of each.

rounds/      the table of rounds: a row for each fault; and the driver that runs them
attacks/     the table of attacks: a row for each thing that plain clients do; and its driver
messages     messages that carry their own number, so that each can be told lost or doubled
claims       what a writer was told to write and said was done, against what the store holds
operations   puts and commits, each said before and after
process      what the processes that are killed have in common
child        one of them, which puts messages and commits batches
remote       a store process that is killed and started again, and clients that continue
power        a file system whose power can be cut
simulated/   the same, simulated: what a power cut can leave of what was written
proxy        a connection that breaks
traces       what a writer asked of the kernel
stores       small stores that damage is done to

Tests by what goes wrong: test_rounds runs a share of each row; test_lives and test_clients show
that its comparisons find what is wrong; test_service stops a store process and fails its flushes;
test_order checks what is on disk before anything is acknowledged; test_disk, test_full_start and
test_limits take disk, files and time away; test_damage and test_bits damage files; test_reads reads
meanwhile; test_attacks attacks, and comes with many clients.
"""
