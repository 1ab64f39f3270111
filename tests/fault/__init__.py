"""Faults: processes killed, power cut, disks full, files damaged (docs/reliability.md).

`python -m tests.fault` runs rounds of them at length; the tests run a part of each.

messages     messages that carry their own number, so that each can be told lost or doubled
claims       what a writer was told to write and said was done, against what the store holds
child        the process that writes and is killed
remote       a client that continues whatever happens to the store process
power        a file system whose power can be cut
proxy        a connection that breaks
traces       what a writer asked of the kernel
stores       small stores that damage is done to
attacks      what a plain client can do to a store process
crowds       what very many honest clients do to a broker at once
rounds/      rounds of kills, power cuts and full disks

Tests by what goes wrong: test_kill, test_lives, test_service, test_replication and test_clients
kill processes, test_syscalls at or in calls of the kernel; test_power cuts the power; test_order
checks what is on disk before anything is acknowledged; test_disk and test_limits take disk, files
and time away; test_damage and test_bits damage files; test_reads reads meanwhile; test_attacks
attacks, and test_crowds comes with many clients.
"""
