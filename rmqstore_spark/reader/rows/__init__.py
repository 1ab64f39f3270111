"""From queues to rows, a batch at a time.

splits      the pieces that tasks read: ranges of queues, or of the log
selection   which entries of a queue are wanted, by tag and time
merge       several queues in the order in which the broker stored their messages
intake      records fetched for chosen entries
read, scan  rows of a split: by queue, and by the log
unpack      compressed bodies, within bounds
decoder     records to rows
"""
