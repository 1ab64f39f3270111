"""What a store process and its clients say to each other; needs neither of them.

protocol   actions by name, schemas, acknowledgements, tickets
messages   the requests and answers, as dataclasses
codec      dataclasses to JSON and back, strictly
endpoint   where a process listens
secrets    tokens, keys and certificates
failures   how a process says no
"""
