"""A store that is a member of a DLedger group: its log belongs to all members.

    member_thread   runs the member: its files, its peers, its clock (`consensus.driver`)
    group_role      master while it leads, slave while it follows
    member_port     where it listens for the others, and whether anyone may come there
    store_group     which group it is, and where its members' brokers are

What is committed goes into queues and index the same way on leader and followers
(`append.applier`); a leader proposes what is put (`log.member_log`).
"""
