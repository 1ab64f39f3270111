"""Sets the log of a store aside, so that the store can begin with another one.

    <store>/rmqstore/aside/{time}/      commitlog, consumequeue, index, checkpoint, and what the
                                        store remembered of them

The CommitLog goes last. If this is interrupted, the store still has its log, and rebuilds from it
what has gone before: it can be opened, or set aside again. The configuration of topics stays.

Of a folder that is a link to another disk, the target gets another name beside it, to which a link
in `aside/` leads, and an empty folder takes its place.
"""

from __future__ import annotations

import os
from datetime import datetime, timezone
from typing import Final

from rmqstore_spark.engine.lock import StoreLock
from rmqstore_spark.engine.reserve import RESERVE_PREFIX
from rmqstore_spark.files.durable import FOLDER_MODE, explained, make_folder, sync_folder
from rmqstore_spark.files.names import OWN_FOLDER

_PARTS: Final = ("index", "consumequeue", "consumequeue_ext", "checkpoint", "abort")
_OWN_THAT_STAYS: Final = frozenset({"aside", "cut", "ready", "staging"})


def set_aside(store: str, now: int) -> str | None:
    """Move a store's log, queues and index into a folder of the store, with its lock held.

    Args:
        store: the store directory.
        now: milliseconds since the epoch; names the folder.

    Returns:
        The folder; None if the store has no log.

    Raises:
        StoreLockedError: another process has the store open.
        StoreWriteError: something could not be moved.
    """
    log = os.path.join(store, "commitlog")
    if not os.path.isdir(log):
        return None
    with StoreLock(store):
        moment = datetime.fromtimestamp(now / 1000, timezone.utc)
        own = os.path.join(store, OWN_FOLDER)
        folder = os.path.join(own, "aside", f"{moment:%Y%m%dT%H%M%S}{now % 1000:03}Z")
        make_folder(folder)
        kept = os.path.join(folder, OWN_FOLDER)
        make_folder(kept)
        for name in _PARTS:
            _move(os.path.join(store, name), os.path.join(folder, name))
        for name in os.listdir(own):
            if name not in _OWN_THAT_STAYS and not name.startswith(RESERVE_PREFIX):
                _move(os.path.join(own, name), os.path.join(kept, name))
        for changed in (kept, folder, own, store):
            sync_folder(changed)
        _move(log, os.path.join(folder, "commitlog"))
        for changed in (folder, store):
            sync_folder(changed)
        return folder


def _move(source: str, target: str) -> None:
    if not os.path.lexists(source):
        return
    with explained(source, "moved"):
        if not os.path.islink(source):
            os.rename(source, target)
            return
        real = os.path.realpath(source)
        kept = f"{real}.aside-{os.path.basename(os.path.dirname(target))}"
        os.rename(real, kept)
        os.mkdir(real, FOLDER_MODE)
        os.symlink(kept, target)
        sync_folder(os.path.dirname(real))
