"""Writes to Delta and Iceberg tables: each backfill, and each batch of a stream, once.

arguments     the options that say which table
schema        the columns of a table, and how an existing one must look
table         what the jobs ask of a table, and how files are appended once
delta         tables of Delta Lake, through the package `deltalake`
iceberg       tables of Iceberg, through the package `pyiceberg`
choosing      finds the table of a job, or creates it
output        the bookkeeping of a backfill in the table's folder
overlap       refuses a backfill of messages that an earlier one has
micro_batch   writes a batch of a stream

Tasks write Parquet with `parquet/`, and need neither package: only the driver knows the table.
"""
