"""Verifies the CommitLog.

end       finds the end of the log
check     walks over the files of the log, and checks the bytes after its end
records   checks each record by itself, and that each Spark batch is whole
dledger   checks DLedger's entries and index
"""
