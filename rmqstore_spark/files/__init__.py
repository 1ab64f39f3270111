"""The files of a store directory, on any file system (`docs/format.md`, "A store directory").

    systems       file systems, on this machine and elsewhere, behind one interface
    directory     finds out whether a folder is a store, and locates its parts
    topology      lists topics and queues
    joined        reads a store and its archives as one
    log_files     finds the files of a log, in one folder or several
    segments      reads a log that is split into such files
    configfiles   reads the broker's JSON, and knows what each file must look like
    deletions     reads which records belong to deleted topics
    links         decides which symbolic links a store may have
    durable       writes files that survive a power cut, and finds what is written of a sparse file
    names         names the files that only this project adds to a store

Nothing in this package knows what a message means.
"""
