"""The protocol between a store process and its clients. It imports neither of them.

protocol   defines codes, acknowledgements, and answers with ranges of files
messages   defines the requests and answers as dataclasses
codec      converts dataclasses to JSON and back, strictly
endpoint   parses the endpoint of a process
login      shows that a client knows the secret of its account
failures   the statuses with which a request is refused
transport  the socket of a connection, plain or TLS, of both ends

From outside it imports `remoting.addresses`, `layout.constants`, `base` and `errors`.
"""
