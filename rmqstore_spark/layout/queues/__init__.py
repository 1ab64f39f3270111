"""The formats of queues: which record of the log each offset of a queue stands for.

format       what a format of queues is (`QueueFormat`), and its entries as columns
consumequeue the ConsumeQueue, with entries of 20 bytes that can point at extension units: all
             queues of 4.9

Code outside of this folder takes a `QueueFormat`. One place chooses it: `files.directory`, which
knows the folders of a store.
"""
