"""File systems: the bytes of files, wherever they are.

open     turns a user's path or URL into a file system and a path
schemes  tells what a path or URL names, and what a file system of another kind lacks
base     the interface of a file system, and its errors; `local`, `remote` and the client's
         `EndpointFiles` implement it
local    files that this machine has mounted
remote   files of another machine, through fsspec
reads    how the bytes of local files are read: the page cache, the rate
spans    joins small ranges into few reads or requests, and limits the memory of each
"""
