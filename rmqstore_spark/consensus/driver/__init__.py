"""Runs a member: its files, its peers, its clock.

    group        who is in the group, and where: `dLegerPeers`
    wire         the bodies of requests and answers, as DLedger writes them
    disk         its files: entries, term, vote and commit index
    protection   TLS and accounts, at the port and for calls
    peers        asks the other members
    checks       what of a leader's push can be stored
    proposals    what a leader appends: the entry with which its term begins, and others
    upkeep       saves the commit index, and removes what has expired
    driver       carries out what the member decides
    queue_end_pages tells where the queues of the store end, page by page
    introduction asks who is at each address: another process, or another group
    service      what peers and clients of the group ask
    running      a member with its port, until it is ended or fails

All runs in one event loop, but for flushes, which a thread does.
"""
