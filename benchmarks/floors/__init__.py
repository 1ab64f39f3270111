"""What this machine allows at best: servers that do nothing, and a file that is only written.

An aim that is out of reach is out of reach of these too: `servers` are the other ends, `callers`
ask them and a store process with the same frames, `figures` puts both in one line.
"""
