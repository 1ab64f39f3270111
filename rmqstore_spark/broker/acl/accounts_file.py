"""Reads a file with accounts: RocketMQ's `plain_acl.yml`.

RocketMQ takes a misspelt right for DENY and passes over a name that it does not know. Here, both
are errors, and so is a file that others can read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.broker.acl.accounts import Account, Accounts
from rmqstore_spark.broker.acl.addresses import WhiteAddresses
from rmqstore_spark.broker.acl.rights import RIGHTS, Right
from rmqstore_spark.layout.constants import RETRY_GROUP_TOPIC_PREFIX
from rmqstore_spark.remoting.access.credentials import read_keys
from rmqstore_spark.remoting.access.signing import SecretKey
from rmqstore_spark.remoting.access.yaml_values import YamlValue, parse_yaml

_FILE: Final = ("globalWhiteRemoteAddresses", "accounts", "dataVersion")
_ACCOUNT: Final = (
    "accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm",
    "defaultGroupPerm", "topicPerms", "groupPerms",
)  # fmt: skip
_MOST_ACCOUNTS: Final = 10_000
_MAX_NAME: Final = 255
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
        if not separator or not 0 < len(name) <= _MAX_NAME or not name.isprintable():
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
