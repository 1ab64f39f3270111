"""Tells what a path or URL names. It reads nothing, and loads nothing that takes time."""

from __future__ import annotations

import re

# Schemes of store processes.
_ENDPOINT = re.compile(r"rmqs?://|unix:/", re.IGNORECASE)
# How Hadoop, fsspec and plain URLs write a local path.
_LOCAL_SCHEMES = ("file://", "local://", "file:")


def local_path(path: str) -> str | None:
    """Return the local path that a path or URL names, or None if it names another system."""
    for scheme in _LOCAL_SCHEMES:
        if path.startswith(scheme) and "::" not in path:
            return path[len(scheme) :]
    if "://" not in path and "::" not in path and not is_endpoint(path):
        return path
    # An absolute local path may contain `://` or `::`.
    return path if path.startswith("/") else None


def is_endpoint(path: str) -> bool:
    """Return whether the location of a store is the endpoint of a store process."""
    return scheme_of_endpoint(path) is not None


def scheme_of_endpoint(path: str) -> str | None:
    """Return the scheme of the endpoint of a store process; None if it is not one."""
    found = _ENDPOINT.match(path)
    return found[0].rstrip(":/").lower() if found else None
