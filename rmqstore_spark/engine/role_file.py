"""Remembers the role that a command gave a store, and the promotions that its log has seen.

    <store>/rmqstore/role.json

A store without this file has the role of its configuration. The file goes with the log: if that is
set aside, so is the file. It is replaced as a whole, so a crash leaves the old or the new content,
and a file that cannot be read has another cause: the store is not opened then. Otherwise a master
would follow again, or a slave accept messages.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.durable import make_folder, replace_file
from rmqstore_spark.files.names import OWN_FOLDER, ROLE_NAME

_MOST_BYTES: Final = 1 << 20
_MOST_PROMOTIONS: Final = 10_000
_MOST_TOLD: Final = 1000
"""Promotions that a master may tell its slaves. The slaves' files have room for later ones."""
_MOST_LONG: Final = (1 << 63) - 1
_ID_LENGTH: Final = 32


class Promotion(NamedTuple):
    """A promotion: from a place in the log on, another process was the master.

    Attributes:
        begin: physical offset of the first byte that the new master wrote.
        id: 32 hex digits, drawn at the promotion.
    """

    begin: int
    id: str


@dataclass(frozen=True)
class KeptRole:
    """The content of the file.

    Attributes:
        role: the role that the last command gave: a value of `brokerRole`; "" if none did.
        decides: whether that role counts, and not that of the configuration. A command sets it, and
            a start with a configuration that says the same takes it back.
        master: whom a slave follows by that command, as a value of `haMasterAddress`.
        master_broker: the same for `haMasterRemotingAddress`.
        promotions: the promotions, the oldest first.
    """

    role: str = ""
    decides: bool = False
    master: str = ""
    master_broker: str = ""
    promotions: tuple[Promotion, ...] = ()


def load_role(store: str) -> KeptRole:
    """Read the file of a store.

    Raises:
        CorruptStoreError: it cannot be read, or holds something else.
    """
    path = os.path.join(store, OWN_FOLDER, ROLE_NAME)
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read(_MOST_BYTES))
        role, decides = value["role"], value["decides"]
        master, broker = value["master"], value["master_broker"]
        promotions = promotions_of(value["promotions"], _MOST_PROMOTIONS)
        if not (all(isinstance(text, str) for text in (role, master, broker))):
            raise ValueError("a name is not a text")
        if role not in ("", "ASYNC_MASTER", "SYNC_MASTER", "SLAVE") or type(decides) is not bool:
            raise ValueError(f"there is no role {role!r:.100}")
        return KeptRole(role, decides and bool(role), master, broker, promotions)
    except FileNotFoundError:
        return KeptRole()
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptStoreError(
            f"it cannot be read ({error!r}), and says whether the store is a master or a slave",
            file=path,
            remedy="Remove the file to let brokerRole decide, if you know that it is right.",
        ) from error


def save_role(store: str, kept: KeptRole) -> None:
    """Write the file of a store; afterwards it is on disk.

    Raises:
        StoreWriteError: it could not be written. The old content counts.
    """
    folder = os.path.join(store, OWN_FOLDER)
    make_folder(folder)
    value = {**asdict(kept), "promotions": [list(promotion) for promotion in kept.promotions]}
    replace_file(os.path.join(folder, ROLE_NAME), json.dumps(value, indent=1).encode())


def promotions_of(value: Any, most: int = _MOST_TOLD) -> tuple[Promotion, ...]:
    """Return promotions from JSON.

    Raises:
        ValueError: the value is something else, or there are too many.
    """
    if not isinstance(value, Sequence) or len(value) > most:
        raise ValueError(f"{value!r:.100} are not promotions")
    return tuple(map(_promotion_of, value))


def _promotion_of(value: Any) -> Promotion:
    match value:
        case [int(begin), str(name)] if 0 <= begin <= _MOST_LONG and len(name) == _ID_LENGTH:
            return Promotion(begin, name)
    raise ValueError(f"{value!r:.100} is not a promotion")
