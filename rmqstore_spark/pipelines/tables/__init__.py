"""Writes to Delta and Iceberg tables: each backfill, and each batch of a stream, once.

arguments  the options that say which table; finds it, or creates it
table      what the jobs ask of a table, how it must look, and how files are appended once
delta      tables of Delta Lake, through the package `deltalake`
iceberg    tables of Iceberg, through the package `pyiceberg`
output     the bookkeeping of a backfill in the table's folder, and the batches of a stream

Tasks write Parquet with `parquet/`, and need neither package: only the driver knows the table.
"""
