"""What a broker decides, in plain values: it knows neither frames nor codes of a protocol.

refusal        why a client does not get what it asks
catalog        the topics and groups, and which of them clients may create
subscriptions  what clients say of themselves, and what they want of which topics
clients        which connections belong to which groups, whose members hear of changes
statistics     counts what producers send, and what consumers get
messages       what producers send: properties, and the messages of a batch
producing      stores it: one block, one append, one flush for all that is given together
consumers/     what consumers ask: messages, offsets, locks, messages sent back
transactions   ends the transactions of producers, and asks for their outcome
administration/ what administrators and slaves ask
core           all of it, for one store

The values are named tuples and dataclasses; JSON that a broker keeps in its files stays a dict. A
face (`broker.faces`) reads them from requests, and makes answers of them.
"""
