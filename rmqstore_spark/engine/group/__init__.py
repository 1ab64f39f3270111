"""A store that is a member of a DLedger group: its log belongs to all members.

    member_thread   runs the member: its files, its peers, its clock (`consensus.driver`)
    group_role      master while it leads, slave while it follows

What a member has committed goes into queues and index as on a slave, whoever leads
(`append.applier`); a leader proposes what is put (`log.member_log`).
"""
