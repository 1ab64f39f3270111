"""Find out whether a folder is a store, and explain why it is not."""

from __future__ import annotations

from rmqstore_spark.errors import RmqStoreError, StoreNotFoundError
from rmqstore_spark.files.base import Files, Listing, join
from rmqstore_spark.files.log.log_folders import segment_start

_COMMITLOG = "commitlog"
_DLEDGER_PREFIX = "dledger-"

# A broker creates these beside the CommitLog. If one exists, an empty `commitlog/` is a new store.
_COMPANIONS = frozenset(
    {"abort", "abort.bak", "checkpoint", "config", "consumequeue", "index", "lock"}
)

_NAMES_SHOWN = 8
_FOLDERS_TRIED = 64
_PARENTS_TRIED = 4


def looks_like_store(files: Files, path: str, listing: Listing) -> bool:
    """Return whether a folder holds a CommitLog or DLedger log, or is the store of a new broker.

    Args:
        files: where the folder lies.
        path: the folder.
        listing: what it holds; sizes are not needed.

    Raises:
        FileNotFoundError: the folder does not exist.
        StoreAccessError: the folder may not be listed.
    """
    folders = {info.name for info in listing if info.is_dir}
    if _COMMITLOG in folders:
        within = files.list(join(path, _COMMITLOG), sizes=False)
        if _has_segments(within):
            return True
        # A new broker's folder is empty, but for what the root of a linked file system has; a store
        # of this project can hold a guard file.
        others = [info for info in within if info.name != "lost+found"]
        if len(others) <= 1 and not _COMPANIONS.isdisjoint(info.name for info in listing):
            return True
    return bool(dledger_folders(files, path, listing))


def dledger_folders(files: Files, path: str, listing: Listing) -> list[str]:
    """Return the names of the folders of a store that hold the log of a DLedger member.

    Args:
        files: where the store lies.
        path: the store.
        listing: its entries.
    """
    names = [info.name for info in listing if info.is_dir and info.name.startswith(_DLEDGER_PREFIX)]
    return [name for name in names if _segments_in(files, join(path, name, "data"))]


def no_store(files: Files, path: str, url: str) -> StoreNotFoundError:
    """Return the error for a path that is not a store: what was expected, what was found, a remedy.

    Args:
        files: the file system.
        path: the path on it.
        url: the path as the user gave it.
    """
    fault = f"no RocketMQ store at {url}: looked for {_COMMITLOG}/ or {_DLEDGER_PREFIX}*/data/"
    fault += " with files named by 20 digits; "
    try:
        listing = files.list(path, sizes=False)
        fault += f"found {_some(listing)}"
    except FileNotFoundError:
        listing = []
        fault = f"{fault}it is a file" if files.exists(path) else f"{url} does not exist"
    hint = _inside(files, path) or _below(files, path, listing) or _elsewhere(listing)
    if path.endswith(".zip"):
        hint = (
            f"To read an archive, use zip://FOLDER::{path}, where FOLDER is the store's path in it."
        )
    return StoreNotFoundError(f"{fault}. {hint}")


def _some(listing: Listing) -> str:
    if not listing:
        return "an empty folder"
    names = [info.name + ("/" if info.is_dir else "") for info in listing[:_NAMES_SHOWN]]
    more = len(listing) - len(names)
    text = ", ".join(names) + (f" and {more} more" if more else "")
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _inside(files: Files, path: str) -> str:
    """Return a hint if the path leads into a store."""
    parent = path
    for _ in range(_PARENTS_TRIED):
        parent, slash, _name = parent.rstrip("/").rpartition("/")
        if not slash or not parent:
            return ""
        if _is_store(files, parent):
            return f"The path is inside the store {parent}: use that path."
    return ""


def _below(files: Files, path: str, listing: Listing) -> str:
    """Return a hint if one or more stores lie below the path."""
    folders = [join(path, info.name) for info in listing if info.is_dir][:_FOLDERS_TRIED]
    tried = [candidate for folder in folders for candidate in (folder, join(folder, "store"))]
    found = [candidate for candidate in tried if _is_store(files, candidate)]
    return f"This looks like a store: {' or '.join(found[:_NAMES_SHOWN])}." if found else ""


def _elsewhere(listing: Listing) -> str:
    """Return a hint if no store is near."""
    if "consumequeue" in {info.name for info in listing if info.is_dir}:
        return (
            "The folder has queues but no CommitLog. If the CommitLog is elsewhere, name its "
            "folders (storePathCommitLog)."
        )
    return "Use the broker's storePathRootDir, or a copy of it."


def _is_store(files: Files, path: str) -> bool:
    try:
        return looks_like_store(files, path, files.list(path, sizes=False))
    except (OSError, RmqStoreError):
        return False


def _segments_in(files: Files, folder: str) -> bool:
    try:
        return _has_segments(files.list(folder, sizes=False))
    except FileNotFoundError:
        return False


def _has_segments(listing: Listing) -> bool:
    return any(not info.is_dir and segment_start(info.name) is not None for info in listing)
