"""Reads a stream.

reader     the class that Spark calls
follower   finds and plans one micro-batch after the other
followed   the sources that it follows: their queues, and which of their replicas are read
resumed    resumes from a checkpoint, and keeps the positions of what is not read now; `identity`
           finds its stores among those of the query
catchup    moves offsets: finds losses, new messages and the range of a batch, within its limits
group_progress  records finished micro-batches as the offsets of a consumer group

The module `datasource.offsets` defines the offsets in the checkpoint.
"""
