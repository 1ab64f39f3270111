"""Commands as bytes: pure functions and values, without a socket.

codes        codes of requests and answers
fields       reads the fields of a header, and names those that are missing or wrong
command      a request or an answer, and its header as JSON or binary
frames       bytes to commands, whatever pieces they arrive in
bodies       bodies: JSON in fastjson's dialect, and texts that were compressed

The format is that of 4.9 (RemotingCommand, NettyDecoder).
"""
