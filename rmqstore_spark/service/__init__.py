"""The process that holds a store open for writing, and serves it to others.

Floor 4: above the writer, below the command. It knows no Spark.
"""
