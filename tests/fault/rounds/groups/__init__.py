"""Rounds in which members of a DLedger group fail, ours and RocketMQ's, under producers.

rounds   the scene: who is killed, stopped or cut off, and what must hold after each
parted   a group whose members reach each other over links that can be cut
offsets  queue offsets that a leader has given again, or passed over
load     producers and a consumer, in Python and Java, and a writer of Spark's batches
"""
