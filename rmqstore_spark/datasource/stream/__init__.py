"""Streaming reads.

offsets    a stream's offsets, as its checkpoint holds them
watch      which queues there are, and how far they reach
catchup    what is new, and how much of it a batch takes
limits     a limit shared over queues
follower   one batch after the other
reader     the class that Spark calls
"""
