"""Verifies the CommitLog.

unit      walks over whole files of the log, record by record
records   checks each record by itself
dledger   checks DLedger's entries and index
"""
