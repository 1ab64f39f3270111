"""The store directory over any file system, read-only (`docs/format.md`, "A store directory").

    open         from what a user writes as a path to files
    base         what a file system must do; `local`, `remote` do it
    listing, handles, spans    folders listed, files kept open, ranges joined
    finding      is this folder a store
    directory    where everything lies in a store
    topology     topics and queues as folders
    log_folders, segments      a log in files of one size
    configfiles  the broker's JSON
    durable      writing files that survive a power cut
    failures     a file system's errors as ours
    own_names    names that this project adds to a store

What a message means is not known here.
"""
