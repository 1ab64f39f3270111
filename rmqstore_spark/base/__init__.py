"""What every folder may use, and what knows none of them but `errors`.

printable    makes text from files and from the network fit for people's eyes
secretfiles  reads files that others may not read
settings     declares options and keys: parser, default, range, documentation
status       RocketMQ's statuses of puts
tlsstream    sends and receives on an encrypted socket from two threads
types        values that several folders share
workers      which Python and Spark run here
"""
