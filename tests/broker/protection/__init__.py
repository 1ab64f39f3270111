"""Accounts of a broker, and the identities of both sides.

accounts   accounts, and requests that are signed
"""
