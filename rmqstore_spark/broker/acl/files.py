"""The files with a broker's accounts: loads them, and again when they have changed.

As RocketMQ has them: a file such as `plain_acl.yml`; or a folder with that file, and with more
files in its folder `acl`. RocketMQ takes a misspelt right for DENY and passes over a name that it
does not know. Here, both are errors, and so is a file that others can read.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.base.secretfiles import read_file
from rmqstore_spark.broker.acl.accounts import RIGHTS, Account, Accounts, Right
from rmqstore_spark.broker.acl.addresses import WhiteAddresses
from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout.constants import RETRY_GROUP_TOPIC_PREFIX
from rmqstore_spark.remoting.access.identity import read_keys
from rmqstore_spark.remoting.access.signing import SecretKey
from rmqstore_spark.remoting.access.yaml_values import YamlValue, parse_yaml
from rmqstore_spark.remoting.codec.fields import MAX_NAME

_log = logging.getLogger(__name__)

_FILE: Final = ("globalWhiteRemoteAddresses", "accounts", "dataVersion")
_ACCOUNT: Final = (
    "accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm",
    "defaultGroupPerm", "topicPerms", "groupPerms",
)  # fmt: skip
_MOST_ACCOUNTS: Final = 10_000
_LEAST_OF_A_KEY: Final = 7
"""Characters of an access key and of a secret (upstream: PlainPermissionManager)."""


def parse_accounts(files: Iterable[tuple[str, bytes]]) -> Accounts:
    """Parse the files of a broker.

    Args:
        files: the path and content of each.

    Raises:
        OptionError: one is wrong; the error names its line. It does not show secrets.
    """
    patterns: list[str] = []
    white = WhiteAddresses()
    accounts: dict[str, Account] = {}
    for path, data in files:
        fields = parse_yaml(path, data).fields(_FILE)
        if "globalWhiteRemoteAddresses" in fields:
            given = fields["globalWhiteRemoteAddresses"]
            for value in given.items():
                _white(value)
                patterns.append(value.text())
            white = _addresses(given, patterns)  # with those of the files before
        for value in fields["accounts"].items() if "accounts" in fields else ():
            account = _account(value)
            if account.access_key in accounts:
                raise value.error(f"has the accessKey of another account, {account.access_key}")
            if len(accounts) >= _MOST_ACCOUNTS:
                raise value.error(f"is one too many: there may be {_MOST_ACCOUNTS} accounts")
            accounts[account.access_key] = account
    return Accounts(white, accounts)


def _account(value: YamlValue) -> Account:
    fields = value.fields(_ACCOUNT)
    access_key, secret = read_keys(value, fields, _LEAST_OF_A_KEY)
    topics = _rights(fields.get("topicPerms"))
    groups = _rights(fields.get("groupPerms"))
    # For RocketMQ, a group and its retry topic are the same.
    for name in [name for name in topics if name.startswith(RETRY_GROUP_TOPIC_PREFIX)]:
        group = name.removeprefix(RETRY_GROUP_TOPIC_PREFIX)
        if group in groups:
            raise fields["topicPerms"].error(f"lists {name} twice: groupPerms has {group}")
        groups[group] = topics.pop(name)
    return Account(
        access_key,
        SecretKey(secret),
        _white(fields.get("whiteRemoteAddress")),
        fields["admin"].flag() if "admin" in fields else False,
        _right(fields.get("defaultTopicPerm")),
        _right(fields.get("defaultGroupPerm")),
        topics,
        groups,
    )


def _white(value: YamlValue | None) -> WhiteAddresses:
    return WhiteAddresses() if value is None else _addresses(value, [value.text()])


def _addresses(value: YamlValue, patterns: list[str]) -> WhiteAddresses:
    try:
        return WhiteAddresses(patterns)
    except ValueError as error:
        raise value.error(f"is wrong: {escaped(str(error))}") from None


def _right(value: YamlValue | None) -> Right:
    if value is None:
        return Right.DENY
    return _named(value, value.text())


def _rights(value: YamlValue | None) -> dict[str, Right]:
    """Return the rights of a list of `NAME=RIGHT` by name."""
    found: dict[str, Right] = {}
    for item in value.items() if value is not None else ():
        name, separator, word = item.text().partition("=")
        name = name.strip()
        if not separator or not 0 < len(name) <= MAX_NAME or not name.isprintable():
            raise item.error("must be a name with a right, such as orders=PUB|SUB")
        if name in found:
            raise item.error(f"lists {name} twice")
        found[name] = _named(item, word)
    return found


def _named(value: YamlValue, word: str) -> Right:
    right = RIGHTS.get(word.strip())
    if right is None:
        raise value.error(f"must have one of the rights {', '.join(RIGHTS)}")
    return right


_NAME: Final = "plain_acl.yml"
_FOLDER: Final = "acl"
_ENDINGS: Final = (".yml", ".yaml")
_MOST_FILES: Final = 64
_RELOAD_SECONDS: Final = 1.0
_SETTLED_NS: Final = 2_000_000_000
"""A file that was changed in this time may change again without a new time."""


class AccountFiles:
    """The accounts of some files. One thread at a time may reload them; others may read them.

    Args:
        path: of the file or the folder.

    Raises:
        OptionError: there is none, or a file is wrong.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._stamp = self._look()
        self._content = self._read()
        self._accounts = parse_accounts(self._content)
        self._told = ""
        self._warn_of_everybody()

    @property
    def accounts(self) -> Accounts:
        """The accounts that were right when they were read last."""
        return self._accounts

    def reload(self) -> None:
        """Read the files again if they have changed. If they are wrong, the accounts stay."""
        stamp = self._look()
        if stamp == self._stamp and not _is_recent(stamp):
            return
        self._stamp = stamp
        try:
            content = self._read()
            if content == self._content and not self._told:
                return
            accounts = parse_accounts(content)
        except OptionError as error:
            if str(error) != self._told:
                _log.error("The accounts stay as they were: %s", error)
            self._told = str(error)
            return
        self._content, self._accounts, self._told = content, accounts, ""
        _log.info("%d accounts were loaded from %s.", len(accounts.by_key), self._path)
        self._warn_of_everybody()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look at the files from time to time, within the context."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(_RELOAD_SECONDS):
                try:
                    self.reload()
                except Exception:  # noqa: BLE001 - they would never be read again
                    _log.exception("The accounts could not be read again; they stay as they were.")

        thread = threading.Thread(target=watch, name="rmqstore-accounts", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _warn_of_everybody(self) -> None:
        accounts = self._accounts
        if accounts.white.has_everybody:
            _log.warning(
                "globalWhiteRemoteAddresses in %s has *: anyone may do anything.", self._path
            )
        for account in accounts.by_key.values():
            if account.white.has_everybody:
                _log.warning(
                    "whiteRemoteAddress of %s in %s is *: anyone may do anything in its name, "
                    "without a signature.", account.access_key, self._path,
                )  # fmt: skip

    def _read(self) -> list[tuple[str, bytes]]:
        return [(path, read_file(path, "account", secret=True)) for path in self._files()]

    def _files(self) -> list[str]:
        """Return the paths of all files, in order."""
        if not os.path.isdir(self._path):
            return [self._path]
        found = [path for path in (os.path.join(self._path, _NAME),) if os.path.lexists(path)]
        found += sorted(_yaml_files(os.path.join(self._path, _FOLDER)))
        if not found:
            raise OptionError(
                f"The folder {self._path} (aclPath) has neither {_NAME} nor files such as "
                f"{_FOLDER}/accounts.yml."
            )
        if len(found) > _MOST_FILES:
            raise OptionError(
                f"The folder {self._path} (aclPath) has {len(found)} files; the most are "
                f"{_MOST_FILES}."
            )
        return found

    def _look(self) -> list[tuple[object, ...]]:
        """Return what changes when the files do."""
        try:
            paths = self._files()
        except OptionError as error:
            return [(str(error), 0)]
        found: list[tuple[object, ...]] = []
        for path in paths:
            try:
                status = os.stat(path)
            except OSError as error:
                found.append((path, error.errno, 0))
            else:
                found.append(
                    (path, status.st_ino, status.st_size, status.st_mode, status.st_ctime_ns)
                )
        return found


def _yaml_files(folder: str) -> Iterator[str]:
    for path, _, names in os.walk(folder):
        yield from (os.path.join(path, name) for name in names if name.endswith(_ENDINGS))


def _is_recent(stamp: list[tuple[object, ...]]) -> bool:
    times = [each[-1] for each in stamp if isinstance(each[-1], int)]
    return max(times, default=0) > time.time_ns() - _SETTLED_NS
