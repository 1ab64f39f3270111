"""A store process as a broker: RocketMQ's producers and consumers talk to it.

core/        what a broker decides, in plain values
faces/       how clients ask for it: faces/remoting/table.py has a row for each request code
acl/         accounts, and what each may ask
protection   what protects the port: accounts and TLS
runner       the thread of the event loop with all of this

From outside it imports `remoting`, `engine`, `reader`, `layout`, `base` and `errors`; `core`
imports no frames, and knows no codes. It behaves as RocketMQ 4.9.8; docs/broker.md says where it
does not.
"""
