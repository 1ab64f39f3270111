"""The protocol between a store process and its clients. It imports neither of them.

protocol   defines codes, statuses, the login, acknowledgements, and answers with ranges of files
reading    defines the requests and answers of all clients, and of those that read files
messages   defines the other requests and answers as dataclasses
codec      converts dataclasses to JSON and back, strictly
endpoint   parses the endpoint of a process
transport  the socket of a connection, plain or TLS, of both ends
staged     what a connection received, as heads of frames and bytes of bodies

From outside it imports `remoting`, `layout.constants`, `base` and `errors`.
"""
