"""Transactional messages through a broker.

halves   requests of producers of transactional messages
"""
