"""The protocol between a store process and its clients. It imports neither of them.

protocol   defines actions, schemas and acknowledgements
messages   defines the requests and answers as dataclasses
codec      converts dataclasses to JSON and back, strictly
endpoint   parses the endpoint of a process
transport  sockets, plain or TLS
failures   encodes and decodes refusals

From outside it imports `layout.constants`, `secretfiles`, `types`, `errors` and `printable`.
"""
