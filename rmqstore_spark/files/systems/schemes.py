"""Tells what a path or URL names, and what a file system of another kind lacks.

That is a package, a library, a host or credentials. Each library has its own exceptions, some with
pages of what it tried. A user gets one sentence with the remedy. Nothing is read here, and nothing
loaded that takes time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from rmqstore_spark.errors import OptionError, RmqStoreError, StoreAccessError

_EVERYWHERE: Final = "on the driver and on each executor"
_MOST_TEXT: Final = 300

_PACKAGES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("abfs", "abfss", "az"), "adlfs"),
    **dict.fromkeys(("http", "https"), "aiohttp requests"),
    **dict.fromkeys(("sftp", "ssh"), "paramiko"),
    **dict.fromkeys(("hdfs", "arrow_hdfs"), "pyarrow"),
    "webhdfs": "requests",
    "smb": "smbprotocol",
    "oss": "ossfs",
    "oci": "ocifs",
    "dropbox": "dropboxdrivefs dropbox requests",
    "git": "pygit2",
    "github": "requests",
    "libarchive": "libarchive-c",
}
"""What `pip install` gets for the URLs of a scheme."""

_INSTEAD: Final[Mapping[str, str]] = {
    "s3n": "s3://BUCKET/PATH",
    "wasb": "abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH",
    "wasbs": "abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH",
    "adl": "abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH",
    "viewfs": "hdfs://HOST:PORT/PATH",
    "maprfs": "the path below the mount of the file system (/mapr/CLUSTER/PATH)",
}
"""Schemes that Hadoop knows, and what to write in their place."""

_PLACES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("s3", "s3a", "gs", "gcs", "oss", "oci"), "bucket"),
    **dict.fromkeys(("abfs", "abfss", "az"), "container"),
    **dict.fromkeys(("http", "https", "ftp", "sftp", "ssh", "smb", "webhdfs"), "host"),
    "hdfs": "folder",
}
"""What must follow `://`."""

_NO_LIBRARY: Final = re.compile(r"libhdfs|libjvm|JAVA_HOME|HADOOP_HOME|CLASSPATH", re.IGNORECASE)
_NO_RIGHTS: Final = re.compile(
    r"credential|forbidden|unauthori[sz]ed|access ?denied|accesskey|signature|authenticat"
    r"|\b40[13]\b|token",
    re.IGNORECASE,
)

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
    return _ENDPOINT.match(path) is not None


def _scheme(path: str) -> str:
    """Return the scheme of the innermost URL of a chain, in lower case; "" if there is none."""
    inner = path.rsplit("::", 1)[-1]
    return inner.partition("://")[0].lower() if "://" in inner else ""


def plain_text(error: BaseException) -> str:
    """Return the first line of what an error says."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = lines[0].strip().rstrip(".")
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


def check_names_place(path: str) -> None:
    """Refuse a URL that names no host, bucket or container.

    Raises:
        OptionError: it names none.
    """
    scheme = _scheme(path)
    what = _PLACES.get(scheme)
    if what is not None and not path.rsplit("::", 1)[-1].partition("://")[2].strip("/"):
        raise OptionError(
            f"{path} names no {what}: nothing follows '://'. Write {scheme}://{what.upper()}/PATH."
        )


def unusable(path: str, error: Exception) -> RmqStoreError:
    """Return the error for a file system that cannot be set up."""
    scheme = _scheme(path)
    if _needs_hadoop(scheme, error):
        return OptionError(
            f"{path} needs Hadoop's client libraries, which were not found: set HADOOP_HOME (or "
            "ARROW_LIBHDFS_DIR), JAVA_HOME, and CLASSPATH to what `hadoop classpath --glob` "
            f"prints, {_EVERYWHERE}; or use webhdfs://HOST:PORT/PATH."
        )
    if scheme in _INSTEAD:
        return OptionError(f"There is no file system for {scheme}://. Use {_INSTEAD[scheme]}.")
    if isinstance(error, ImportError) or (scheme in _PACKAGES and _is_unknown(error)):
        package = _PACKAGES.get(scheme)
        if package is None:
            return OptionError(
                f"{path} needs a package that is not installed: {plain_text(error)}. Install it "
                f"{_EVERYWHERE}."
            )
        return OptionError(
            f"{path} needs a package that is not installed: run `pip install {package}` "
            f"{_EVERYWHERE}."
        )
    if _is_unknown(error):
        return OptionError(
            f"There is no file system for {scheme}://. Use a path, a URL of fsspec such as "
            "s3://BUCKET/PATH, or the endpoint of a store process (rmq://HOST:PORT)."
        )
    if isinstance(error, ValueError | TypeError):
        return OptionError(
            f"no file system for {path} with these storage options: {plain_text(error)}"
        )
    if lacks_rights(error):
        return refused_access(path, error)
    return RmqStoreError(
        f"{path} cannot be reached: {plain_text(error)}. Check the host, the network and the "
        "storage options."
    )


def refused_access(path: str, error: Exception) -> StoreAccessError:
    """Return the error for credentials that are missing, wrong, or give no right to read."""
    return StoreAccessError(
        f"{path} may not be read with the credentials that were found: {plain_text(error)}. Check "
        f"them and their rights (list and read), {_EVERYWHERE}."
    )


def lacks_rights(error: Exception) -> bool:
    """Return whether a file system refuses this side, or found no credentials."""
    is_denied = isinstance(error, PermissionError)
    return is_denied or bool(_NO_RIGHTS.search(f"{type(error).__name__} {error}"))


def _needs_hadoop(scheme: str, error: Exception) -> bool:
    return scheme in ("hdfs", "arrow_hdfs") and bool(_NO_LIBRARY.search(str(error)))


def _is_unknown(error: Exception) -> bool:
    return isinstance(error, ValueError) and str(error).startswith("Protocol not known")
