"""Access keys: how a request proves who sent it, and the files that hold such keys.

yaml_values   a small YAML file, value by value, each with its line
signing       the signature of a request
credentials   the key with which this side signs its own requests
identity      that key, and TLS, of a configuration
identity_files  the same as names of files, for who must send them on

From outside it imports `remoting.codec.command`, `remoting.tls`, `base` and `errors`.
"""
