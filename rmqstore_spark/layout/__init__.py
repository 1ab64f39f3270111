"""The on-disk format, both ways: bytes to NumPy and Arrow, and back. It opens no files.

constants      magic codes, bits of sysFlag, names of properties and topics
fields         where the fields of a record lie
buffers        views of bytes
spans          ranges of a buffer, and Arrow arrays built from them
hosts          addresses as bytes, and the message ids that contain them
record/        decodes and encodes the records of a CommitLog
compression    compresses and decompresses bodies
queues/        the formats of queues: their entries
index/         reads and builds IndexFiles
checkpoint     the checkpoint and the flush mark: how far files are on disk
dledger, fastjson   decode the other files of a store
kernel/        the loops over bytes, compiled or in NumPy; one of them reads from a file descriptor

Each format is complete, in both directions, though the package itself uses only a part: tests write
any file with it, and compare it with RocketMQ's.

From outside it imports `base.status` and `errors`.
"""
