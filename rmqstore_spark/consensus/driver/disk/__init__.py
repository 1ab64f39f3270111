"""A member's files, in `dledger-{selfId}/` of its store (docs/format.md, "DLedger").

opening      opens all of them, and refuses those that do not fit each other
segmented    bytes by offset, in files of one size, and the room on their disk
entry_log    the entries and their index: writes, cuts and reads them
recovery     finds the entries that are whole, when a member starts
state_files  term, vote and commit index, as texts
flush_thread flushes what was written
"""
