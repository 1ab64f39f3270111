"""Transactions: holds half messages, ends them once, and has their producers asked.

waiting        the transactions that wait for their end, in memory, and which of them are checked
halves         the way in: a put whose messages become half messages; reads them in the log
outcomes       what is stored and answered when transactions end
progress       how far all is done: offsets of CID_RMQ_SYS_TRANS, `config/transactionChecks.json`;
               finds in the log what waits, after a start
followed       the oldest half message that waits at a follower, which ends none
transactions   puts, ends, lists, checks: the service, which the servers of both protocols call
checks         the thread that checks what has waited for too long

`workers` starts it; `expiry` keeps the segments that it needs. The folder uses `admission`,
`append`, `log`, `dispatch`, `tables`, and `reader.transactions`, which finds what waits in files.
The format is in docs/format.md, "Transactions".

`transactions` is long: one lock guards all that it does, and what can be decided, made or found
without the lock is in the other modules.
"""
