"""Access keys: how a request proves who sent it, and the files that hold such keys.

yaml_values   a small YAML file, value by value, each with its line
signing       the signature of a request
identity      as whom this side talks: the key with which it signs, and TLS

From outside it imports `remoting.codec.command`, `remoting.tls`, `base` and `errors`.
"""
