"""The on-disk format, both directions: bytes to NumPy and Arrow and back. No files, no Spark.

    constants      magic codes, flags of sysFlag, names of properties and topics
    hosts, msgid   addresses in records, and the message ids made of them
    record/        a CommitLog record: its bytes, columns, properties, blocks of many
    compression, packed    compressed bodies, and whether they are what they claim to be
    consumequeue, consumequeue_ext    queue entries, and the units beside them
    index/         an IndexFile: its bytes, how it is built, the hash of a key
    checkpoint, dledger, fastjson     the other files of a store
    kernel/        the loops over bytes, compiled or in NumPy

`buffers` says what all of them take as bytes.
"""
