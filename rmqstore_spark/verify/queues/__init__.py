"""Verifies the ConsumeQueues.

expected   computes the entries that a broker writes for records
match      compares the records of the log with their entries, which it reads ahead
judge      follows single entries to their records and extension units
void       checks that void entries belong to records of batches without their rest
check      checks the files, and the entries that no record matched
"""
