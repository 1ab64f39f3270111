"""Code that several commands share.

parameters   defines common arguments and options, and opens the store that they name
settings     reads the configuration from flags, environment and file
connection   connects to a store process
choosing     selects queues, and ranges of their messages
messages     reads the messages of ranges in the order of the log
following    reads the newest messages, and follows new ones
incoming     parses messages from stdin
outgoing     encodes messages as blocks
printing     prints messages as a table, as JSON or as bodies
tables, text, bar   print tables, escape text, show progress
usage        reports mistakes in a command line
terminal     turns errors and Ctrl-C into exit codes and lines on stderr
"""
