"""Code that several commands share.

parameters  defines common arguments and options; opens stores, clients and configurations by them
choosing    selects queues, and ranges of their messages, and reads these
incoming    parses messages from stdin, and encodes them as blocks
printing    prints messages as a table, as JSON or as bodies
tables      prints tables and facts, and makes text fit for a terminal and for JSON
terminal    turns errors and Ctrl-C into exit codes and lines on stderr; shows progress and the log
"""
