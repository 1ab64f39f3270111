"""Commands as bytes: pure functions and values, without a socket.

codes        codes of requests and answers
fields       reads the fields of a header, and names those that are missing or wrong
command      a request or an answer, and its header as JSON or binary
frames       bytes to commands, whatever pieces they arrive in
plain        plain requests to send, whose headers are not decoded
bodies       bodies: JSON in fastjson's dialect, and texts that were compressed

The format is that of 4.9 (RemotingCommand, NettyDecoder). Unlike `layout.kernel`, this has no
compiled form and reference: JSON is read and written by msgspec, which is compiled, and the rest of
a frame is a few calls of `struct`. The kernel reads plain requests to send, and the batches of
messages in bodies.
"""
