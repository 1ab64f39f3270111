"""A member of a DLedger group: what it decides, without files, sockets, clocks, threads or chance.

    messages    what members say to each other, as DLedger does
    ledger      what a member knows of its entries: ends, terms, what is on disk
    actions     what a member asks of its driver
    member      the state machine: terms, roles, the commit index
    election    whom a member votes for, and what a candidate does next
    pushing     a leader brings a peer's ledger to the end of its own
    following   a follower brings its ledger to what its leader pushes
    rejoining   what a member without its files must learn before it may vote
    timing      how long members wait for each other
    driver/     runs a member: its files, its peers, its clock

All but `driver` do no I/O. A driver gives a member messages, the time, and word of what is on disk.
It takes `GroupMember.actions` after each step, and carries them out in order. The protocol is that
of DLedger 0.3.1.2, which RocketMQ 4.9 uses. Where its rules can lose an entry that was
acknowledged, stricter ones that its members accept take their place.
"""
