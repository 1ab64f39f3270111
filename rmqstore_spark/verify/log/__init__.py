"""Verifying the CommitLog.

files     names and sizes of its files
unit      whole files of it, record by record
batch     records of a stretch, with what several checks need
records   what a record says by itself
flaws     stretches without a record
dledger   DLedger's entries and index
"""
