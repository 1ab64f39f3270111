"""Names of the files that this project, but no broker, puts into a store or an archive."""

from __future__ import annotations

from typing import Final

OWN_FOLDER: Final = "rmqstore"
"""Folder in the store: staged data, bytes that recovery cut off, the ledger of commits."""

STORE_ID_NAME: Final = "store-id"
"""File in OWN_FOLDER with the store's id: 32 hex digits."""

FLUSH_MARK_NAME: Final = "flushed"
"""File in OWN_FOLDER with the offset up to which the log was flushed; see `layout.checkpoint`."""

OLD_LOG_NAME: Final = "oldlog"
"""In a store that became a member of a group: where its own log ends, and what is at its end."""

QUEUE_ENDS_NAME: Final = "queue-ends.json"
"""In the store of a member of a group: where queues end of which it may never have had a message.
"""

DELETED_NAME: Final = "deleted.json"
"""File in OWN_FOLDER with the ends of deleted topics; see `files.deletions`."""

REACH_MARK_NAME: Final = "reached"
"""File in OWN_FOLDER while recovery removes segments whose records queues still name: a flush mark
with the offset up to which the files of the log reached before."""

ROLE_NAME: Final = "role.json"
"""File in OWN_FOLDER with the role that a command gave the store; see `engine.role`."""

ARCHIVE_NAME: Final = "rmqstore-archive.json"
"""File in an archive of expired segments: says whose archive it is."""

GUARD_NAME: Final = "rmqstore-spark.guard"
"""File in `commitlog/` while our writer has the store open, and after it was killed. A broker
refuses to load a store with a file of another size there, before it changes anything."""
