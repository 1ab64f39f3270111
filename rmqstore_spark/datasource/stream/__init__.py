"""Reads a stream.

reader     the class that Spark calls
follower   finds and plans one micro-batch after the other
standby    chooses the replica of each store on which plans are made
watch      tracks which queues exist, and how far they reach; `pulled_watch` does so for a broker
resumed    resumes from a checkpoint; `identity` finds its stores among those of the query
kept       keeps the positions of what the stream does not read now
catchup    moves offsets: finds losses, new messages and the range of a batch
batch_partitions  cuts a micro-batch into partitions
limits     divides a batch's limit among queues
group_progress  records finished micro-batches as the offsets of a consumer group

The module `datasource.offsets` defines the offsets in the checkpoint.
"""
