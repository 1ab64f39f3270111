"""Accounts of a store process, and the files of its clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["KEY", "SECRET", "account_file", "guarded"]

KEY = "honest-client"
SECRET = "5ecre7-5ecre7-5ecre7"


def account_file(path: Path, key: str = KEY, secret: str = SECRET) -> Path:
    """Write a client's file with an access key; return its path."""
    return _secret_file(path, {"accessKey": key, "secretKey": secret})


def guarded(path: Path, *accounts: dict[str, Any], white: tuple[str, ...] = ()) -> dict[str, Any]:
    """Write a process's file with accounts; return the attributes of its StoreConfig.

    Args:
        path: of the file.
        accounts: fields beside KEY and SECRET; none: an administrator.
        white: addresses that need no account.
    """
    found = [
        {"accessKey": KEY, "secretKey": SECRET, **one} for one in accounts or ({"admin": True},)
    ]
    _secret_file(path, {"globalWhiteRemoteAddresses": list(white), "accounts": found})
    return {"acl_enable": True, "acl_path": str(path)}


def _secret_file(path: Path, content: dict[str, Any]) -> Path:
    """Write YAML, which JSON is, so that nobody else can read it, and at once."""
    made = path.with_name(f"{path.name}.new")
    made.write_text(json.dumps(content))
    made.chmod(0o600)
    return made.rename(path)
