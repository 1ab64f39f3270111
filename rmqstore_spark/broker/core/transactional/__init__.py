"""Transactional messages of producers.

`producing` stores their half messages, with all other sends.

ending     ends transactions as their producers ask
checking   asks producers for the outcome of transactions that wait for too long

Both stand on the store's own transactions (`engine.transactions`), as clients of the endpoint do.
So a transaction ends once, from wherever it is asked for.
"""
