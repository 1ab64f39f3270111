"""Writing: rows of Spark become records, and a store process puts them into its store."""
