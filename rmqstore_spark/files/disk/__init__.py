"""How the bytes of local files are read: their effect on the page cache, and their rate.

    reads      reads plainly, as any program does; defines the interface
    sparing    reads without pushing other pages out of the page cache
    cached     reads what is in the page cache, and never waits for the disk
    residence  tells which pages of a file are in the page cache
    pacing     counts the bytes of other reads, and limits their rate

`files.local` and the store process read through these objects, which know nothing of stores.
"""
