"""A disk of the imagination: what a power cut can leave of what a program has written.

calls    records a program's calls of the operating system that change files below a folder
disk     carries them out on a disk in memory, and draws what is left of it after a crash

The program runs on a real folder. Its calls are those of the module `os`, which all that writes a
store uses; a crash at any of them is played afterwards, as often as wanted.
"""
