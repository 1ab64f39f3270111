"""Writing: rows of Spark become records, and a store process puts them into its store.

writers    the classes that Spark calls
options, columns    of a write
task       one task: rows in, records out
routing    which queue a row goes to
encode     rows to blocks of records
stores, sending     the stores of a task, and the blocks on their way
outcome    what a task tells the driver
commit     what the driver does at the end
"""
